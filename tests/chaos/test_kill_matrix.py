"""A runner is killed, or paused and woken after another took over, at every step of every kind of operation.

Each time in a real process, just before and just after the step's commit, and just before each data-plane call.
"""

from __future__ import annotations

import signal

import pytest

from controller.domain.operation import OperationState
from controller.services import segment_admin
from controller.services.operation_runner import Outcome
from tests.chaos.cells import CELLS, FAST_CELLS, Cell, Path, every_move
from tests.chaos.laws import settle_and_check
from tests.chaos.scenarios import BY_NAME, SCENARIOS, Scenario
from tests.chaos.strikes import (
    NewBench,
    RecordCell,
    check_calls_after_giving_up,
    check_killed,
    check_killed_at_each_call,
    check_late_calls,
    check_paused,
    kill_at,
    start,
)


def test_the_cells_cover_every_step_of_every_kind() -> None:
    assert {(cell.kind, cell.step) for cell in CELLS} == every_move()


@pytest.mark.integration
@pytest.mark.parametrize("cell", FAST_CELLS, ids=str)
def test_fast_subset_a_killed_runner_is_resumed(
    cell: Cell, new_bench: NewBench, record_cell: RecordCell
) -> None:
    check_killed(new_bench(), cell, record_cell)


@pytest.mark.integration
@pytest.mark.parametrize("cell", FAST_CELLS[:2], ids=str)
def test_fast_subset_a_paused_runner_is_refused(
    cell: Cell, new_bench: NewBench, record_cell: RecordCell
) -> None:
    check_paused(new_bench(), cell, record_cell)


@pytest.mark.chaos
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_a_runner_killed_beside_a_commit_is_resumed(
    cell: Cell, new_bench: NewBench, record_cell: RecordCell
) -> None:
    check_killed(new_bench(), cell, record_cell)


@pytest.mark.chaos
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_a_runner_paused_beside_a_commit_is_refused_when_it_wakes(
    cell: Cell, new_bench: NewBench, record_cell: RecordCell
) -> None:
    check_paused(new_bench(), cell, record_cell)


@pytest.mark.chaos
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_runner_killed_at_each_data_plane_call_is_resumed(
    scenario: Scenario, new_bench: NewBench, record_cell: RecordCell
) -> None:
    check_killed_at_each_call(scenario, new_bench, record_cell)


@pytest.mark.chaos
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_call_that_is_made_long_after_the_takeover_does_no_harm(
    scenario: Scenario, new_bench: NewBench, record_cell: RecordCell
) -> None:
    check_late_calls(scenario, new_bench, record_cell)


@pytest.mark.chaos
@pytest.mark.parametrize("name", ["create", "split"])
def test_a_call_made_after_others_gave_up_and_cleaned_up_leaves_no_orphan(
    name: str, new_bench: NewBench, record_cell: RecordCell
) -> None:
    check_calls_after_giving_up(BY_NAME[name], new_bench, record_cell)


@pytest.mark.integration
def test_a_killed_runner_holds_up_its_own_operation_only(new_bench: NewBench) -> None:
    bench = new_bench()
    bench.topic_with(segments=2)
    killed = bench.intend(segment_admin.splitting(0)).operation.operation_id
    beside = bench.intend(segment_admin.splitting(1)).operation.operation_id

    assert kill_at(bench, killed, "terminate-parents:before")
    assert bench.run_once(beside) is Outcome.FINISHED  # at once, with the dead one's claim still valid
    assert bench.operation(killed).state is OperationState.FENCING
    bench.drive(killed)

    bench.settle()
    bench.check_laws()


@pytest.mark.chaos
@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_task_killed_beside_the_commit_of_its_intent_and_retried_asks_once(
    scenario: Scenario, side: str, new_bench: NewBench, record_cell: RecordCell
) -> None:
    check_asks_once(scenario, side, new_bench, record_cell)


@pytest.mark.parametrize("side", ["before", "after"])
def test_fast_subset_a_task_killed_beside_the_commit_of_its_intent_and_retried_asks_once(
    side: str, new_bench: NewBench, record_cell: RecordCell
) -> None:
    check_asks_once(BY_NAME["split"], side, new_bench, record_cell)


def check_asks_once(scenario: Scenario, side: str, new_bench: NewBench, record_cell: RecordCell) -> None:
    """Kill the task on that side of its commit, ask again, and see one operation."""
    bench = new_bench()
    scenario.prepare(bench)
    asker = start("asker", url=bench.url, scenario=scenario.name, key="asked", side=side)
    asker.communicate()
    assert asker.returncode == -signal.SIGKILL
    assert len(bench.live_operations()) == (1 if side == "after" else 0)
    operation_id = scenario.intend(bench, "asked")
    assert [one.operation_id for one in bench.live_operations()] == [operation_id]
    bench.drive(operation_id)
    row = settle_and_check(bench, scenario, operation_id)
    assert row["ended"] == "done"
    record_cell(fault="task retried", scenario=scenario.name, path=Path.FORWARD, at=f"intent:{side}", **row)
