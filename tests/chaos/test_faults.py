"""The data plane fails, stays away, or loses requests and answers, at every call; and people break logs by hand.

Runner and test share a process here: what is killed elsewhere lives on, and only the data plane misbehaves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from controller.domain.errors import DataPlaneUnavailable, SegmentNotFound
from controller.domain.operation import OperationKind, OperationState
from controller.services import segment_admin
from controller.services.operation_runner import Outcome
from tests.chaos.laws import settle_and_check
from tests.chaos.scenarios import BY_NAME, SCENARIOS, Scenario, a_topic
from tests.support.bench import Bench
from tests.support.faulty_data_plane import Fault, FaultyDataPlane, PlannedFault

NewBench = Callable[[], Bench]
RecordCell = Callable[..., None]
FAST = (BY_NAME["split"],)
RESHAPES = tuple(scenario for scenario in SCENARIOS if scenario.kind.is_reshape)


def check_fault_at_each_call(
    scenario: Scenario, fault: Fault, new_bench: NewBench, record_cell: RecordCell
) -> None:
    """One failing call in a run, the first, then the second, and so on as long as there is one to fail."""
    number = 0
    while True:
        number += 1
        bench = new_bench()
        scenario.prepare(bench)
        operation_id = scenario.intend(bench, "asked")
        plane = FaultyDataPlane(bench.runner_plane, PlannedFault(fault, number=number))
        bench.drive(operation_id, bench.context(planes={"embedded": plane.as_data_plane()}))
        row = settle_and_check(bench, scenario, operation_id, away_seconds=0.0)
        assert row["ended"] == "done"
        if not plane.injected:
            assert number > 1 or not plane.log
            return
        record_cell(fault=fault, scenario=scenario.name, path="forward", at=f"call:{number}", **row)


@pytest.mark.integration
@pytest.mark.parametrize("scenario", FAST, ids=lambda scenario: scenario.name)
def test_fast_subset_a_lost_answer_at_each_call_changes_nothing(
    scenario: Scenario, new_bench: NewBench, record_cell: RecordCell
) -> None:
    check_fault_at_each_call(scenario, Fault.LOST_ANSWER, new_bench, record_cell)


@pytest.mark.chaos
@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_failing_call_is_repeated_until_the_operation_is_done(
    scenario: Scenario, fault: Fault, new_bench: NewBench, record_cell: RecordCell
) -> None:
    check_fault_at_each_call(scenario, fault, new_bench, record_cell)


@pytest.mark.chaos
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_data_plane_away_past_the_deadline_aborts_before_the_fence_and_is_waited_for_behind_it(
    scenario: Scenario, new_bench: NewBench, record_cell: RecordCell
) -> None:
    number = 0
    while True:
        number += 1
        bench = new_bench()
        scenario.prepare(bench)
        operation_id = scenario.intend(bench, "asked")
        plane = FaultyDataPlane(bench.runner_plane)
        away_from = number

        def refuse(call: str, called: int, away_from: int = away_from) -> None:
            if called >= away_from:
                raise DataPlaneUnavailable(f"injected: {call} while away", delay_seconds=0.01)

        plane.before_call = refuse
        outcome = bench.run_once(operation_id, planes={"embedded": plane.as_data_plane()})
        if outcome is Outcome.FINISHED:
            return
        assert outcome is Outcome.DEFERRED
        gives_up = bench.operation(operation_id).state in (OperationState.INTENDED, OperationState.PREPARED)
        bench.execute(
            "UPDATE cleave.operation SET deadline = clock_timestamp(), row_version = row_version + 1"
            " WHERE operation_id = :operation_id",
            operation_id=operation_id,
        )
        bench.drive(operation_id)  # the data plane is back
        row = settle_and_check(bench, scenario, operation_id)
        can_give_up = scenario.kind.is_reshape or scenario.kind in (OperationKind.CREATE, OperationKind.ADOPT)
        assert row["ended"] == ("aborted" if gives_up and can_give_up else "done")
        record_cell(fault="away", scenario=scenario.name, path="forward", at=f"call:{number}", **row)


@dataclass(frozen=True)
class LogDamage:
    """What somebody does by hand to a log, and when."""

    state: OperationState
    whose: str
    act: str

    def __str__(self) -> str:
        return f"{self.state}-{self.whose}-{self.act}"

    def commit(self, bench: Bench, operation_id: int) -> None:
        """Do it, to the first parent or child; a log that does not exist yet cannot be hurt."""
        operation = bench.operation(operation_id)
        log = operation.parent_topics[0] if self.whose == "parent" else operation.children[0].backing_topic
        act = bench.plane.terminate_segment if self.act == "terminate" else bench.plane.delete_segment
        try:
            act(log)
        except SegmentNotFound:
            assert (self.state, self.whose) == (OperationState.INTENDED, "child")


VANDALISM = tuple(
    LogDamage(state, whose, act)
    for state in (
        OperationState.INTENDED,
        OperationState.PREPARED,
        OperationState.FENCING,
        OperationState.FENCED,
        OperationState.COMMITTED,
    )
    for whose in ("parent", "child")
    for act in ("terminate", "delete")
)


@pytest.mark.chaos
@pytest.mark.parametrize("vandalism", VANDALISM, ids=str)
@pytest.mark.parametrize("scenario", RESHAPES, ids=lambda scenario: scenario.name)
def test_a_log_broken_by_hand_during_a_reshape_ends_in_a_whole_layout(
    scenario: Scenario, vandalism: LogDamage, new_bench: NewBench, record_cell: RecordCell
) -> None:
    bench = new_bench()
    scenario.prepare(bench)
    operation_id = scenario.intend(bench, "asked")
    bench.run_until(operation_id, vandalism.state)
    vandalism.commit(bench, operation_id)
    bench.drive(operation_id)
    survive = (vandalism.whose, vandalism.act) != ("parent", "delete")
    row = settle_and_check(bench, scenario, operation_id, messages_survive=survive, collects=not survive)
    record_cell(fault="by hand", scenario=scenario.name, path="forward", at=str(vandalism), **row)


@pytest.mark.chaos
@pytest.mark.parametrize("act", ["terminate active", "delete active", "delete sealed", "reopen sealed"])
def test_a_log_broken_by_hand_with_nothing_under_way_is_put_right(
    act: str, new_bench: NewBench, record_cell: RecordCell
) -> None:
    bench = new_bench()
    a_topic(1)(bench)
    bench.reshape(segment_admin.splitting(0))
    active, sealed = bench.log_of(1), bench.log_of(0)
    match act:
        case "terminate active":
            bench.plane.terminate_segment(active)
        case "delete active":
            bench.plane.delete_segment(active)
        case "delete sealed":
            bench.plane.delete_segment(sealed)
        case "reopen sealed":  # as from a backup of before the fence
            origin = bench.plane.describe_logs([sealed])[sealed].origin
            bench.plane.delete_segment(sealed)
            bench.plane.create_segment(sealed, ["billing"], origin)
    findings = bench.settle(collects=True)
    bench.check_laws()
    assert len(findings) == 1
    record_cell(
        fault="by hand", scenario="idle", path="forward", at=act, ended="done", findings=1, unwritable_ms=0
    )
