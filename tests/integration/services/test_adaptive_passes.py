"""Passes over topics that `adaptive` decides on: several acts at once, and the budget of reconnections they spend."""

from __future__ import annotations

import json
from typing import Any

import pytest

from controller.dataplane.base import DataPlane
from controller.domain.decision import Lane, RefusalReason
from controller.domain.evaluation_input import Capabilities, EvaluationInput
from controller.domain.evaluator import decide
from controller.domain.operation import OperationKind
from controller.domain.policy import AutoScalePolicy, PolicyOverride
from controller.domain.reshape import plan_merge
from controller.services import autoscaler
from controller.store.decisions import evaluations
from controller.store.load import producer_counts
from controller.store.topics import policies
from tests.support.bench import Bench
from tests.support.passes import HOT, LOAD, WARM, decisions, register, report, run


class HalvingPlane:
    """A data plane that only divides at the midpoint, as a broker that keeps the layout does."""

    capabilities = Capabilities(midpoint_only=True, shared_buckets=True)

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plane, name)


def adaptive(bench: Bench, segments: int, **parameters: Any) -> None:
    bench.topic_with(segments)
    bench.store.in_transaction(
        policies.set_topic, bench.topic_id, PolicyOverride(profile="adaptive", **parameters)
    )


def test_all_that_is_hot_is_relieved_in_one_pass_and_each_row_replays(bench: Bench) -> None:
    adaptive(bench, 4)
    report(bench, {0: HOT, 1: WARM, 2: 9 * HOT, 3: WARM})

    result = run(bench)
    operations = [bench.operation(i) for i in result.operation_ids]

    assert [(one.kind, one.parent_ids, len(one.children)) for one in operations] == [
        (OperationKind.SPLIT, (2,), 25),
        (OperationKind.SPLIT, (0,), 3),
    ]
    for operation_id in result.operation_ids:
        bench.drive(operation_id)
    bench.check_laws()
    assert len(bench.layout.active) == 30
    [row] = decisions(bench)
    assert row.code_version.startswith("adaptive")
    replayed = decide(EvaluationInput.from_json(row.situation), row.lanes).to_json()
    assert json.loads(replayed)["decisions"] == row.decisions


def test_a_topic_with_something_to_weigh_is_due_again_after_a_tick(bench: Bench) -> None:
    adaptive(bench, 1)
    report(bench, {0: 10_500.0})

    [outcome] = run(bench, LOAD).outcomes

    assert [r.reason for r in outcome.evaluation.refusals] == [RefusalReason.TOLERATED_OVERLOAD]
    due = bench.store.in_transaction(evaluations.next_due, LOAD)
    wait = bench.scalar("SELECT extract(epoch FROM CAST(:due AS timestamptz) - clock_timestamp())", due=due)
    assert 0 < wait <= 60


def test_what_is_weighed_anew_at_each_tick_is_written_once(bench: Bench) -> None:
    adaptive(bench, 1)
    told = []
    for rate in (10_500.0, 10_600.0, 10_700.0):
        report(bench, {0: rate})
        told.append(len(run(bench, LOAD).outcomes))

    assert told == [1, 0, 0]


def test_why_not_names_the_segment_that_is_overloaded_now(bench: Bench) -> None:
    """The reason is that of the evaluation before, the segment is another."""
    adaptive(bench, 2)
    for hot in (0, 1):
        report(bench, {hot: 10_500.0, 1 - hot: WARM})
        run(bench, LOAD)

        named = bench.rows(
            "SELECT segment_id, reason FROM inspect.why_not WHERE lane = 'load' AND is_current"
        )

        assert named == [(hot, "tolerated-overload")]


def test_acts_spend_the_budget_and_what_it_holds_back_is_due_when_there_is_some(bench: Bench) -> None:
    adaptive(bench, 2, reconnections_per_minute=3.0)
    for name in "abcd":  # two on each segment
        register(bench, name)
    report(bench, {0: HOT, 1: 3 * HOT})

    [first] = run(bench, LOAD).outcomes

    assert [(r.segment_id, r.reason) for r in first.evaluation.refusals] == [
        (0, RefusalReason.RECONNECTION_BUDGET)
    ]
    left = bench.scalar(
        "SELECT reconnections_left FROM cleave.evaluation WHERE topic_id = :t", t=bench.topic_id
    )
    assert left == 1
    of_cluster = bench.scalar("SELECT reconnections_left FROM cleave.cluster_reconnections")
    assert of_cluster == AutoScalePolicy().cluster_reconnections_per_minute - 2
    bench.drive(first.operation_ids[0])
    bench.execute(
        "UPDATE cleave.evaluation SET reconnections_at = clock_timestamp() - interval '1 minute', load_due = '-infinity'"
    )

    [second] = run(bench, LOAD).outcomes

    assert bench.operation(second.operation_ids[0]).parent_ids == (0,)


def test_connected_producers_are_disturbed_like_consumers_and_stand_in_the_ledger(bench: Bench) -> None:
    adaptive(bench, 2, reconnections_per_minute=6.0)
    for name in "ab":  # one on each segment
        register(bench, name)
    bench.store.in_transaction(
        producer_counts.record, {(bench.topic_id, 0): 3, (bench.topic_id, 1): 2, (bench.topic_id, 99): 50}
    )
    report(bench, {0: HOT, 1: 3 * HOT})

    [outcome] = run(bench, LOAD).outcomes

    [refusal] = outcome.evaluation.refusals
    assert (refusal.segment_id, refusal.reason) == (0, RefusalReason.RECONNECTION_BUDGET)
    assert (refusal.value, refusal.needed) == (4, 2)
    [row] = decisions(bench)
    situation = EvaluationInput.from_json(row.situation)
    assert (situation.clients, situation.producers) == (1, 3)
    assert json.loads(decide(situation, row.lanes).to_json())["refusals"] == row.refusals


def test_the_clusters_budget_holds_back_as_well(bench: Bench) -> None:
    adaptive(bench, 1)
    register(bench, "a")
    report(bench, {0: HOT})
    bench.execute(
        "UPDATE cleave.cluster_reconnections SET reconnections_left = -30000, reconnections_at = clock_timestamp()"
    )

    [outcome] = run(bench, LOAD).outcomes

    assert outcome.operation_ids == ()
    [refusal] = outcome.evaluation.refusals
    assert refusal.reason is RefusalReason.RECONNECTION_BUDGET
    [row] = decisions(bench)
    situation = EvaluationInput.from_json(row.situation)
    assert situation.reconnections_left == situation.policy.reconnections_per_minute
    assert situation.cluster_reconnections_left == pytest.approx(-30_000, abs=10_000)
    assert refusal.not_before is not None
    assert 40_000 < refusal.not_before - situation.now < 60_100  # the cluster regains its 30000 in a minute


def test_budgets_of_a_time_to_come_are_neither_refilled_nor_emptied(bench: Bench) -> None:
    """The clock of the database was set back by an hour."""
    adaptive(bench, 2, reconnections_per_minute=3.0)
    for name in "ab":  # one on each segment
        register(bench, name)
    report(bench, {0: WARM, 1: HOT})
    ahead = "reconnections_at = clock_timestamp() + interval '1 hour'"
    bench.execute(f"UPDATE cleave.evaluation SET reconnections_left = 2, {ahead}")
    bench.execute(f"UPDATE cleave.cluster_reconnections SET reconnections_left = 20, {ahead}")

    [outcome] = run(bench, LOAD).outcomes

    assert len(outcome.operation_ids) == 1
    [row] = decisions(bench)
    situation = EvaluationInput.from_json(row.situation)
    assert (situation.reconnections_left, situation.cluster_reconnections_left) == (2, 20)
    assert bench.scalar("SELECT reconnections_left FROM cleave.evaluation") == 1
    assert bench.scalar("SELECT reconnections_left FROM cleave.cluster_reconnections") == 19
    assert bench.scalar("SELECT max(reconnections_at) <= clock_timestamp() FROM cleave.evaluation")


@pytest.mark.parametrize("lane", [Lane.LOAD, Lane.MERGE])
def test_a_pass_of_one_lane_leaves_the_other_to_its_own(bench: Bench, lane: Lane) -> None:
    adaptive(bench, 4, reseal_price_segment_seconds=0.0)
    report(bench, {0: 1.0, 1: 1.0, 2: 9 * HOT, 3: WARM})
    memory = "SELECT :t, n, 60, 1, array_fill(CAST(1 AS float8), ARRAY[180]) FROM generate_series(0, 1) n"
    bench.execute(
        f"INSERT INTO cleave.load_memory (topic_id, segment_id, tick_seconds, last_tick, rates) {memory}",
        t=bench.topic_id,
    )

    kinds = {bench.operation(i).kind for i in run(bench, {lane}).operation_ids}

    assert kinds == {OperationKind.SPLIT if lane is Lane.LOAD else OperationKind.MERGE}


def test_a_burst_does_not_wait_for_a_report_after_each_act(bench: Bench) -> None:
    """What is halved and halved again is known by its share of what was reported, until somebody reports it."""
    adaptive(bench, 1, max_segments=64)
    report(bench, {0: 80_000.0})
    sizes = []
    for _ in range(6):
        outcomes = autoscaler.run_pass(
            bench.store, {bench.plane.name: HalvingPlane(bench.plane)}, LOAD, decided_by="tests", limit=100
        ).outcomes
        for operation_id in (i for outcome in outcomes for i in outcome.operation_ids):
            bench.drive(operation_id)
        sizes.append(len(bench.layout.active))

    assert sizes == [2, 4, 8, 8, 8, 8]  # 10,000 a second each is no more than a segment can carry
    bench.check_laws()


def test_what_no_ancestor_covers_is_not_guessed(bench: Bench) -> None:
    adaptive(bench, 2)
    report(bench, {0: 80_000.0})
    bench.reshape(lambda layout, _: plan_merge(layout, 0, 1))

    [outcome] = run(bench, LOAD).outcomes

    assert [r.reason for r in outcome.evaluation.refusals] == [RefusalReason.NO_LOAD_RECORD]
