"""A runner is killed, or paused and woken after another took over, at every step of every kind of operation, on every data plane.

Each time in a real process, just before and just after the step's commit, and just before each data-plane call.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from controller.domain.operation import OperationKind, OperationState
from controller.domain.operation_steps import Step
from controller.services import segment_admin
from controller.services.operation_runner import Outcome
from tests.chaos import scalable_scene
from tests.chaos.cells import CELLS, FAST_CELLS, Cell, Path, Side, every_move
from tests.chaos.laws import settle_and_check
from tests.chaos.scenarios import BY_NAME, SCENARIOS, Scenario
from tests.chaos.strikes import (
    OF_LOGS,
    Matrix,
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
from tests.chaos.victim import run_to_end
from tests.support.bench_planes import UNHURRIED_LEASE_SECONDS


@dataclass(frozen=True)
class Target:
    """A data plane that runners are struck on, and the cells it has: `fast` and `paused` of them in every run of the tests."""

    benches: str
    """Name of the fixture that builds its benches."""
    matrix: Matrix
    cells: tuple[Cell, ...]
    fast: tuple[Cell, ...]
    paused: tuple[Cell, ...]
    marks: tuple[pytest.MarkDecorator, ...]


FAST_ON_PULSAR = tuple(
    cell
    for cell in FAST_CELLS
    if (cell.step, cell.side)
    in {(Step.TERMINATE_PARENTS, Side.BEFORE), (Step.COMMIT, Side.BEFORE), (Step.ABORT, Side.AFTER)}
)
"""Closed but not known to be; known to be but not in the layout; given up with children made."""
FAST_ON_PULSAR_5 = (
    Cell("attach", OperationKind.ATTACH, Path.ABORT, Step.ABORT, Side.AFTER),
    Cell("split", OperationKind.SPLIT, Path.FORWARD, Step.RESHAPE_ON_BROKER, Side.BEFORE),
    Cell("detach", OperationKind.DETACH, Path.FORWARD, Step.GIVE_BACK, Side.BEFORE),
)
"""Given up with the broker's controller off; done by the broker and not recorded; given back and not recorded."""
TARGETS = {
    "embedded": Target("new_bench", OF_LOGS, CELLS, FAST_CELLS, FAST_CELLS[:2], (pytest.mark.integration,)),
    "pulsar": Target(
        "new_pulsar_bench", OF_LOGS, CELLS, FAST_ON_PULSAR, FAST_ON_PULSAR[:1], (pytest.mark.pulsar,)
    ),
    "pulsar5": Target(
        "new_scalable_bench",
        scalable_scene.MATRIX,
        scalable_scene.CELLS,
        FAST_ON_PULSAR_5,
        FAST_ON_PULSAR_5[1:2],
        (pytest.mark.pulsar, pytest.mark.xdist_group("pulsar5")),
    ),
}
"""Every cell is struck on each; what a dead runner left on a broker, the next one has to recognise over the admin REST API."""


def each_cell(cells: Callable[[Target], tuple[Cell, ...]]) -> pytest.MarkDecorator:
    """Parametrize `target` and `cell` with those cells of every target."""
    return pytest.mark.parametrize(
        ("target", "cell"),
        [
            pytest.param(target, cell, id=f"{name}-{cell}", marks=target.marks)
            for name, target in TARGETS.items()
            for cell in cells(target)
        ],
    )


EACH_SCENARIO = pytest.mark.parametrize(
    ("target", "scenario"),
    [
        pytest.param(target, scenario, id=f"{name}-{scenario.name}", marks=target.marks)
        for name, target in TARGETS.items()
        for scenario in target.matrix.scenarios.values()
    ],
)


@pytest.fixture
def new_bench_of(request: pytest.FixtureRequest, target: Target) -> NewBench:
    """Any number of benches on the target."""
    build: NewBench = request.getfixturevalue(target.benches)
    return build


def test_the_cells_cover_every_step_of_every_kind() -> None:
    assert {(cell.kind, cell.step) for cell in CELLS} == every_move()
    assert (len(FAST_CELLS), len(FAST_ON_PULSAR)) == (6, 3)
    for target in TARGETS.values():
        assert {*target.fast, *target.paused} <= set(target.cells)


@each_cell(lambda target: target.fast)
def test_fast_subset_a_killed_runner_is_resumed(
    target: Target, cell: Cell, new_bench_of: NewBench, record_cell: RecordCell
) -> None:
    check_killed(new_bench_of(), cell, record_cell, target.matrix)


@each_cell(lambda target: target.paused)
def test_fast_subset_a_paused_runner_is_refused(
    target: Target, cell: Cell, new_bench_of: NewBench, record_cell: RecordCell
) -> None:
    check_paused(new_bench_of(), cell, record_cell, target.matrix)


@pytest.mark.chaos
@each_cell(lambda target: target.cells)
def test_a_runner_killed_beside_a_commit_is_resumed(
    target: Target, cell: Cell, new_bench_of: NewBench, record_cell: RecordCell
) -> None:
    check_killed(new_bench_of(), cell, record_cell, target.matrix)


@pytest.mark.chaos
@each_cell(lambda target: target.cells)
def test_a_runner_paused_beside_a_commit_is_refused_when_it_wakes(
    target: Target, cell: Cell, new_bench_of: NewBench, record_cell: RecordCell
) -> None:
    check_paused(new_bench_of(), cell, record_cell, target.matrix)


@pytest.mark.chaos
@EACH_SCENARIO
def test_a_runner_killed_at_each_data_plane_call_is_resumed(
    target: Target, scenario: Scenario, new_bench_of: NewBench, record_cell: RecordCell
) -> None:
    struck = check_killed_at_each_call(scenario, new_bench_of, record_cell, target.matrix)
    assert struck > 0 or target.matrix is OF_LOGS


@pytest.mark.chaos
@EACH_SCENARIO
def test_a_call_that_is_made_long_after_the_takeover_does_no_harm(
    target: Target, scenario: Scenario, new_bench_of: NewBench, record_cell: RecordCell
) -> None:
    struck = check_late_calls(scenario, new_bench_of, record_cell, target.matrix)
    assert struck > 0 or target.matrix is OF_LOGS


@pytest.mark.chaos
@pytest.mark.parametrize("name", ["create", "split"])
@pytest.mark.parametrize(
    "target",
    [pytest.param(TARGETS[name], id=name, marks=TARGETS[name].marks) for name in ("embedded", "pulsar")],
)
def test_a_call_made_after_others_gave_up_and_cleaned_up_leaves_no_orphan(
    name: str, new_bench_of: NewBench, record_cell: RecordCell
) -> None:
    check_calls_after_giving_up(BY_NAME[name], new_bench_of, record_cell)


@pytest.mark.integration
def test_a_killed_runner_holds_up_its_own_operation_only(new_bench: NewBench) -> None:
    bench = new_bench()
    bench.topic_with(segments=2)
    killed = bench.intend(segment_admin.splitting(0)).operation.operation_id
    beside = bench.intend(segment_admin.splitting(1)).operation.operation_id

    assert kill_at(bench, killed, "terminate-parents:before")
    outcome = bench.run_once(beside, lease_seconds=UNHURRIED_LEASE_SECONDS)
    assert outcome is Outcome.FINISHED  # at once, with the dead one's claim still valid
    assert bench.operation(killed).state is OperationState.FENCING
    bench.drive(killed)

    bench.settle()
    bench.check_laws()


@pytest.mark.integration
def test_a_victim_whose_claim_runs_out_comes_by_its_point_yet(new_bench: NewBench) -> None:
    bench = new_bench()
    bench.topic_with()
    operation_id = bench.intend(segment_admin.splitting(0)).operation.operation_id
    points: list[str] = []

    def let_the_claim_run_out_at_the_first(name: str) -> None:
        if not points:
            bench.execute(
                "UPDATE cleave.operation SET claim_expires_at = clock_timestamp(), row_version = row_version + 1"
                " WHERE operation_id = :operation_id",
                operation_id=operation_id,
            )
        points.append(name)

    context = bench.context("victim", checkpoint=let_the_claim_run_out_at_the_first)
    assert run_to_end(bench, context, operation_id) is Outcome.FINISHED
    assert points.count("create-children:before") == 2, "the record that came too late was refused"
    assert "terminate-parents:before" in points


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
