"""The kill matrix on topics whose layout Pulsar 5 keeps: every move of theirs, and every call to the broker.

What a runner left behind when it died or fell asleep is here a reshape that the broker has done and nobody recorded, or
a setting of its auto-scaler; the next one has to tell by looking. A call made after the takeover cannot be refused by
us: the broker refuses a second reshape of a segment, and whoever is late with a setting takes it back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from controller.devstack.postgres import PostgresServer
from controller.domain.operation import MIRROR_MOVES, OperationKind, OperationState, Step
from tests.chaos.cells import Cell, Path, Side
from tests.chaos.scalable_scene import (
    ABORTABLES,
    BY_NAME,
    CELLS,
    REFUSED,
    SCENARIOS,
    ScalableBench,
    begin,
    every_move,
    scalable_benches,
    settle_and_check,
)
from tests.chaos.scenarios import Scenario
from tests.chaos.strikes import (
    Matrix,
    RecordCell,
    check_killed,
    check_killed_at_each_call,
    check_late_calls,
    check_paused,
    kill_at,
    pass_deadline,
    pause_at,
)
from tests.support.brokers import SharedBroker
from tests.support.faulty_data_plane import Fault, FaultyDataPlane, PlannedFault

NewBench = Callable[[], ScalableBench]
FAST = (
    Cell("attach", OperationKind.ATTACH, Path.ABORT, Step.ABORT, Side.AFTER),
    Cell("split", OperationKind.SPLIT, Path.FORWARD, Step.RESHAPE_ON_BROKER, Side.BEFORE),
    Cell("detach", OperationKind.DETACH, Path.FORWARD, Step.GIVE_BACK, Side.BEFORE),
)
"""Given up with the broker's controller off; done by the broker and not recorded; given back and not recorded."""


@pytest.fixture
def new_scalable_bench(
    pulsar5_broker: SharedBroker, postgres_server: PostgresServer, migrated_template: str
) -> Iterator[NewBench]:
    """Any number of benches on the run's broker, each with a database and a topic of its own."""
    yield from scalable_benches(postgres_server, migrated_template, pulsar5_broker)


def ended_as(scenario: Scenario, path: Path) -> str:
    """How the operation ends when every fault was one of ours."""
    return "aborted" if path is Path.ABORT or scenario.kind in REFUSED else "done"


MATRIX = Matrix(BY_NAME, begin, settle_and_check, ended_as)


def test_every_move_on_a_broker_is_in_the_matrix() -> None:
    refused_from_the_first = {(kind, step) for kind in REFUSED for step in _forward(kind)}
    assert {(cell.kind, cell.step) for cell in CELLS} == every_move() - refused_from_the_first
    assert {scenario.kind for scenario in SCENARIOS} == MIRROR_MOVES.keys()
    assert len(set(map(str, CELLS))) == len(CELLS)
    assert set(FAST) <= set(CELLS)


def _forward(kind: OperationKind) -> list[Step]:
    return [step for state, (step, _) in MIRROR_MOVES[kind].items() if state is not OperationState.ABORTING]


@pytest.mark.parametrize("cell", FAST, ids=str)
def test_fast_subset_a_killed_runner_is_resumed(
    cell: Cell, new_scalable_bench: NewBench, record_cell: RecordCell
) -> None:
    check_killed(new_scalable_bench(), cell, record_cell, MATRIX)


@pytest.mark.parametrize("cell", FAST[1:2], ids=str)
def test_fast_subset_a_paused_runner_is_refused(
    cell: Cell, new_scalable_bench: NewBench, record_cell: RecordCell
) -> None:
    check_paused(new_scalable_bench(), cell, record_cell, MATRIX)


@pytest.mark.chaos
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_a_runner_killed_beside_a_commit_is_resumed(
    cell: Cell, new_scalable_bench: NewBench, record_cell: RecordCell
) -> None:
    check_killed(new_scalable_bench(), cell, record_cell, MATRIX)


@pytest.mark.chaos
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_a_runner_paused_beside_a_commit_is_refused_when_it_wakes(
    cell: Cell, new_scalable_bench: NewBench, record_cell: RecordCell
) -> None:
    check_paused(new_scalable_bench(), cell, record_cell, MATRIX)


@pytest.mark.chaos
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_runner_killed_at_each_call_is_resumed(
    scenario: Scenario, new_scalable_bench: NewBench, record_cell: RecordCell
) -> None:
    assert check_killed_at_each_call(scenario, new_scalable_bench, record_cell, MATRIX) > 0


@pytest.mark.chaos
@pytest.mark.parametrize("scenario", ABORTABLES, ids=lambda scenario: scenario.name)
def test_what_a_runner_killed_at_each_call_left_is_given_up_when_its_time_is_over(
    scenario: Scenario, new_scalable_bench: NewBench, record_cell: RecordCell
) -> None:
    number, gave_up = 0, True
    while gave_up:
        number += 1
        bench = new_scalable_bench()
        operation_id = begin(bench, scenario)
        kill_at(bench, operation_id, f"call:{number}")
        gave_up = bench.operation(operation_id).state in (OperationState.INTENDED, OperationState.PREPARED)
        pass_deadline(bench, operation_id)
        bench.drive(operation_id)
        row = settle_and_check(bench, scenario, operation_id)
        if gave_up:
            assert row["ended"] == "aborted"
            record_cell(fault="killed", scenario=scenario.name, path=Path.ABORT, at=f"call:{number}", **row)
    assert number > 1


@pytest.mark.chaos
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_call_that_is_made_long_after_the_takeover_does_no_harm(
    scenario: Scenario, new_scalable_bench: NewBench, record_cell: RecordCell
) -> None:
    assert check_late_calls(scenario, new_scalable_bench, record_cell, MATRIX) > 0


@pytest.mark.chaos
@pytest.mark.parametrize("scenario", ABORTABLES, ids=lambda scenario: scenario.name)
def test_a_call_made_after_others_gave_up_leaves_the_broker_as_it_was(
    scenario: Scenario, new_scalable_bench: NewBench, record_cell: RecordCell
) -> None:
    number, gave_up = 0, True
    while gave_up:
        number += 1
        bench = new_scalable_bench()
        operation_id = begin(bench, scenario)
        its_time_is_over = partial(pass_deadline, bench, operation_id)
        outcome = pause_at(bench, operation_id, f"call:{number}", its_time_is_over)
        row = settle_and_check(bench, scenario, operation_id)
        gave_up = outcome is not None and row["ended"] == "aborted"
        if gave_up:
            record_cell(
                fault="late call", scenario=scenario.name, path=Path.ABORT, at=f"call:{number}", **row
            )
    assert number > 1


@pytest.mark.chaos
@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_failing_call_is_settled_by_looking(
    scenario: Scenario, fault: Fault, new_scalable_bench: NewBench, record_cell: RecordCell
) -> None:
    number = 0
    while True:
        number += 1
        bench = new_scalable_bench()
        operation_id = begin(bench, scenario)
        plane = FaultyDataPlane(bench.planes[bench.plane.name], PlannedFault(fault, number=number))
        bench.drive(operation_id, bench.context(planes={bench.plane.name: plane.as_data_plane()}))
        row = settle_and_check(bench, scenario, operation_id)
        assert row["ended"] == ended_as(scenario, Path.FORWARD)
        if not plane.injected:
            assert number > 1
            return
        asked = [arguments for call, arguments in plane.log if call == "ask_reshape"]
        assert len(asked) <= 1 + int(fault is not Fault.LOST_ANSWER)
        record_cell(fault=fault, scenario=scenario.name, path=Path.FORWARD, at=f"call:{number}", **row)
