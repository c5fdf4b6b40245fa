"""A runner or a gate keeper is killed, or paused and resumed, at every step that concerns gates. No gate opens early or stays shut."""

from __future__ import annotations

import signal

import pytest

from controller.domain.operation_steps import Step
from tests.chaos import gated_scene
from tests.chaos.cells import Cell, Path, Side
from tests.chaos.gated_scene import CELLS, MATRIX, SCENARIOS, check_no_gate_is_early, read_and_open
from tests.chaos.scenarios import Scenario
from tests.chaos.strikes import (
    NewBench,
    RecordCell,
    check_killed,
    check_killed_at_each_call,
    check_paused,
    pause,
    start,
    where_of,
)
from tests.support.bench import Bench

KEEPER_POINTS = tuple(f"{act}:{side}" for act in ("drain", "ready", "open") for side in Side)
FAST = tuple(
    cell
    for cell in CELLS
    if cell.path is Path.FORWARD
    and (cell.scenario, cell.step, cell.side)
    in {
        ("gated-split", Step.CREATE_CHILDREN, Side.BEFORE),
        ("gated-split", Step.TERMINATE_PARENTS, Side.BEFORE),
        ("gated-seek", Step.MOVE_CURSORS, Side.BEFORE),
    }
)
"""The runner is killed before the commit of a step. Three effects are then at the data plane and not recorded: gates closed, a parent
terminated, cursors moved.
"""
EMBEDDED = pytest.param("new_gated_bench", id="embedded", marks=pytest.mark.integration)
BROKER = pytest.param("new_pulsar_bench", id="pulsar", marks=(pytest.mark.pulsar, pytest.mark.chaos))
ON_EACH = pytest.mark.parametrize("fixture", [EMBEDDED, BROKER])


@pytest.fixture
def new_bench_of(request: pytest.FixtureRequest, fixture: str) -> NewBench:
    """Factory of benches on the data plane of the test case."""
    build: NewBench = request.getfixturevalue(fixture)
    return build


def test_the_fast_cells_are_there() -> None:
    assert len(FAST) == 3


@pytest.mark.integration
@pytest.mark.parametrize("cell", FAST, ids=str)
def test_fast_subset_a_killed_runner_leaves_no_gate_open(
    cell: Cell, new_gated_bench: NewBench, record_cell: RecordCell
) -> None:
    check_killed(new_gated_bench(), cell, record_cell, MATRIX)


@pytest.mark.chaos
@ON_EACH
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_a_killed_runner_leaves_no_gate_open(
    cell: Cell, new_bench_of: NewBench, record_cell: RecordCell
) -> None:
    check_killed(new_bench_of(), cell, record_cell, MATRIX)


@pytest.mark.chaos
@pytest.mark.integration
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_a_paused_runner_that_wakes_leaves_no_gate_open(
    cell: Cell, new_gated_bench: NewBench, record_cell: RecordCell
) -> None:
    check_paused(new_gated_bench(), cell, record_cell, MATRIX)


@pytest.mark.chaos
@ON_EACH
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_runner_killed_at_each_call_leaves_no_gate_open(
    scenario: Scenario, new_bench_of: NewBench, record_cell: RecordCell
) -> None:
    assert check_killed_at_each_call(scenario, new_bench_of, record_cell, MATRIX) > 0


@ON_EACH
@pytest.mark.parametrize("at", KEEPER_POINTS)
def test_a_killed_keeper_leaves_its_gates_to_another(at: str, new_bench_of: NewBench) -> None:
    bench = waiting_at_gates(new_bench_of())
    bench.plane.skip_all(bench.log_of(0), "billing")
    victim = start("victim", at=at, by="SIGKILL", keeps_gates=True, **where_of(bench))
    victim.communicate()
    assert victim.returncode == -signal.SIGKILL

    check_no_gate_is_early(bench)
    read_and_open(bench)


@pytest.mark.integration
@pytest.mark.parametrize("at", ["ready:before", "ready:after", "drain:before"])
def test_a_keeper_that_wakes_after_a_seek_opens_and_marks_nothing(at: str, new_gated_bench: NewBench) -> None:
    bench = waiting_at_gates(new_gated_bench())
    bench.plane.skip_all(bench.log_of(0), "billing")
    victim = start("victim", at=at, by="SIGSTOP", keeps_gates=True, **where_of(bench))

    def seek() -> None:
        bench.drive(gated_scene.seeking(bench, "asked"))

    assert pause(victim, seek) is not None
    check_no_gate_is_early(bench)
    assert bench.rows("SELECT DISTINCT state FROM cleave.gate") == [("closed",)]
    assert bench.rows("SELECT segment_id FROM cleave.segment_drain") == []
    read_and_open(bench)


def waiting_at_gates(bench: Bench) -> Bench:
    """Prepare a split topic with an unread parent and a child with messages behind a closed gate. Return the bench."""
    gated_scene.an_unread_split(bench)
    bench.publish(1, 3)
    return bench
