"""The rest of the kill matrix on topics whose layout Pulsar 5 keeps: deadlines that pass beside a call, and calls that fail.

What a runner left behind when it died or fell asleep is here a reshape that the broker has done and nobody recorded, or
a setting of its auto-scaler; the next one has to tell by looking. A call made after the takeover cannot be refused by
us: the broker refuses a second reshape of a segment, and whoever is late with a setting takes it back.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from controller.domain.operation import OperationKind, OperationState
from controller.domain.operation_steps import MIRROR_MOVES, Step
from tests.chaos.cells import Path
from tests.chaos.scalable_scene import (
    ABORTABLES,
    CELLS,
    REFUSED,
    SCENARIOS,
    ScalableBench,
    begin,
    ended_as,
    every_move,
    settle_and_check,
)
from tests.chaos.scenarios import Scenario
from tests.chaos.strikes import RecordCell, kill_at, pass_deadline, pause_at
from tests.support.faulty_data_plane import Fault, FaultyDataPlane, PlannedFault

NewBench = Callable[[], ScalableBench]


def test_every_move_on_a_broker_is_in_the_matrix() -> None:
    refused_from_the_first = {(kind, step) for kind in REFUSED for step in _forward(kind)}
    assert {(cell.kind, cell.step) for cell in CELLS} == every_move() - refused_from_the_first
    assert {scenario.kind for scenario in SCENARIOS} == MIRROR_MOVES.keys()
    assert len(set(map(str, CELLS))) == len(CELLS)


def _forward(kind: OperationKind) -> list[Step]:
    return [step for state, (step, _) in MIRROR_MOVES[kind].items() if state is not OperationState.ABORTING]


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
        plane = FaultyDataPlane(bench.runner_plane, PlannedFault(fault, number=number))
        bench.drive(operation_id, bench.context(planes={bench.plane.name: plane.as_data_plane()}))
        row = settle_and_check(bench, scenario, operation_id)
        assert row["ended"] == ended_as(scenario, Path.FORWARD)
        if not plane.injected:
            assert number > 1
            return
        asked = [arguments for call, arguments in plane.log if call == "ask_reshape"]
        assert len(asked) <= 1 + int(fault is not Fault.LOST_ANSWER)
        record_cell(fault=fault, scenario=scenario.name, path=Path.FORWARD, at=f"call:{number}", **row)
