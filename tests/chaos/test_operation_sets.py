"""A runner of several reshapes is killed, or paused and woken after others took over, at each of its points.

On the embedded logs it runs them side by side, on a broker one after the other.
Two splits of one topic and, on the way there, a merge of what one split made: the layouts of one topic follow one
another. Struck just before and just after each commit, and before each data-plane call.
"""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from controller.domain.operation import OperationState
from controller.services import segment_admin
from controller.services.operation_runner import run_due
from tests.chaos.strikes import pause, start_victim
from tests.support.bench import Bench

NewBench = Callable[[], Bench]
STEPS = ("create-children", "set-fencing", "terminate-parents", "commit", "finish")
POINTS = (*(f"{step}:{side}" for step in STEPS for side in ("before", "after")), "call:1", "call:2", "call:3")
FAST_POINTS_ON_A_BROKER = ("call:2", "commit:before")
FAST_POINTS = ("set-fencing:after", "commit:before", "commit:after")
PLANS = {
    "splits": lambda: [segment_admin.splitting(0), segment_admin.splitting(1)],
    "merge and split": lambda: [segment_admin.merging(2, 3), segment_admin.splitting(1)],
    "rebucket and re-cut": lambda: [
        segment_admin.rebucketing(1, 8),
        segment_admin.recutting([2, 3], [0x2000]),
    ],
}


def begin(bench: Bench, plan: str) -> list[int]:
    """Two segments with messages, and two reshapes asked for; their ids."""
    bench.topic_with(segments=2)
    for segment_id in (0, 1):
        bench.publish(segment_id)
    if plan != "splits":
        bench.reshape(segment_admin.splitting(0))
    return [bench.intend(planner).operation.operation_id for planner in PLANS[plan]()]


def check(bench: Bench, operation_ids: list[int]) -> None:
    """Both are done whoever ended them, each with one epoch, and no message or cursor is lost."""
    for operation_id in operation_ids:
        assert bench.drive(operation_id).state is OperationState.DONE
    bench.settle()
    bench.check_laws()
    assert bench.unread("billing") == 6
    for operation_id in operation_ids:
        changes = "SELECT count(*) FROM cleave.layout_change WHERE operation_id = :id"
        assert bench.scalar(changes, id=operation_id) == 1
        steps = "SELECT count(DISTINCT step) FROM cleave.operation_step WHERE operation_id = :id"
        assert bench.scalar(steps, id=operation_id) == len(STEPS)


def check_killed(bench: Bench, plan: str, at: str) -> None:
    operation_ids = begin(bench, plan)
    victim = start_victim(bench, at, "SIGKILL")
    victim.communicate()
    assert victim.returncode == -signal.SIGKILL
    check(bench, operation_ids)


@pytest.fixture(params=["new_bench", pytest.param("new_pulsar_bench", marks=pytest.mark.pulsar)])
def bench(request: pytest.FixtureRequest) -> Bench:
    """On the embedded logs, and on a broker."""
    new: NewBench = request.getfixturevalue(request.param)
    return new()


@pytest.mark.integration
@pytest.mark.parametrize("at", FAST_POINTS)
def test_fast_subset_reshapes_of_a_killed_runner_are_taken_up(at: str, new_bench: NewBench) -> None:
    check_killed(new_bench(), "splits", at)


@pytest.mark.pulsar
@pytest.mark.parametrize("at", FAST_POINTS_ON_A_BROKER)
def test_fast_subset_a_reshape_on_a_broker_is_taken_up(at: str, new_pulsar_bench: NewBench) -> None:
    check_killed(new_pulsar_bench(), "splits", at)


@pytest.mark.chaos
@pytest.mark.parametrize("at", POINTS)
@pytest.mark.parametrize("plan", PLANS)
def test_reshapes_of_a_killed_runner_are_taken_up(plan: str, at: str, bench: Bench) -> None:
    check_killed(bench, plan, at)


@pytest.mark.chaos
@pytest.mark.parametrize("at", POINTS)
@pytest.mark.parametrize("plan", PLANS)
def test_a_runner_that_wakes_after_others_took_over_does_no_harm(plan: str, at: str, bench: Bench) -> None:
    operation_ids = begin(bench, plan)

    def others() -> None:
        for operation_id in operation_ids:
            bench.drive(operation_id)
        while run_due(bench.context("other"), limit=8):
            pass

    assert pause(start_victim(bench, at, "SIGSTOP"), others) is not None
    check(bench, operation_ids)
