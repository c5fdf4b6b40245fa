"""The autoscaler among others: who moves first, who is in the way and whose trouble it is."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import Connection, text

from benchmarks.fleet import insert_fleet
from controller.domain.decision import Lane, RefusalReason
from controller.domain.errors import FencedOut
from controller.domain.evaluation_input import EvaluationInput
from controller.domain.policy import PolicyOverride
from controller.services import autoscaler, segment_admin
from controller.services.autoscaler import PassResult
from controller.services.operation_runner import run_due
from controller.store.topics import policies
from tests.support.bench import Bench
from tests.support.passes import COLD, HOT, LOAD, WARM, decisions, owed, register, report, run


def test_what_a_person_asked_for_meanwhile_is_respected(bench: Bench) -> None:
    bench.topic_with(2)
    report(bench, {0: HOT, 1: WARM})
    manual = bench.intend(segment_admin.splitting(0))

    result = run(bench, LOAD)

    assert result.operation_ids == ()
    [outcome] = result.outcomes
    assert [refusal.reason for refusal in outcome.evaluation.refusals] == [RefusalReason.IN_FLIGHT]
    assert [operation.operation_id for operation in bench.live_operations()] == [
        manual.operation.operation_id
    ]


def test_an_intent_written_between_reading_and_locking_leads_to_another_look(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other intent commits after the situation was read; the decision on it must not be acted upon."""
    bench.topic_with(2)
    report(bench, {0: HOT, 1: WARM})
    reading = autoscaler.batch.evaluation_inputs.load_evaluation_inputs
    looks = []

    def read_then_be_overtaken(
        tx: Connection, topic_ids: Collection[int], capabilities: Any, **_: Any
    ) -> Any:
        found = reading(tx, topic_ids, capabilities)
        if not looks:
            bench.intend(segment_admin.splitting(0))
        looks.append(len(found))
        return found

    monkeypatch.setattr(autoscaler.batch.evaluation_inputs, "load_evaluation_inputs", read_then_be_overtaken)

    result = run(bench, LOAD)

    assert looks == [1, 1]
    assert result.operation_ids == ()
    assert result.still_dirty == ()
    [row] = decisions(bench)
    assert [refusal["reason"] for refusal in row.refusals] == [RefusalReason.IN_FLIGHT]


def test_a_topic_somebody_else_is_working_on_stays_dirty_and_nothing_is_written(bench: Bench) -> None:
    bench.topic_with(1)
    report(bench, {0: HOT})
    with bench.store.transaction() as other:
        other.execute(text("SELECT FROM cleave.topic FOR UPDATE"))
        result = run(bench)

    assert result == PassResult(0, (), (bench.topic_id,))
    assert decisions(bench) == []
    assert len(run(bench).operation_ids) == 1


def test_passes_side_by_side_decide_once(bench: Bench) -> None:
    bench.topic_with(1)
    report(bench, {0: HOT})

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: run(bench), range(8)))

    assert len([operation for result in results for operation in result.operation_ids]) == 1
    assert len([row for row in decisions(bench) if row.decisions]) == 1


def test_one_topics_trouble_pauses_that_topic_alone(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.topic_with(1)
    report(bench, {0: HOT})

    def fail(_situation: EvaluationInput, _lanes: Collection[Lane]) -> None:
        raise ArithmeticError("a bug")

    monkeypatch.setattr(autoscaler.batch, "decide", fail)

    assert run(bench) == PassResult(0, (), (bench.topic_id,))
    assert not owed(bench)
    assert bench.scalar("SELECT not_before > clock_timestamp() FROM cleave.evaluation")


def test_a_decision_that_cannot_become_an_intent_leaves_no_ledger_row(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.topic_with(1)
    report(bench, {0: HOT})
    monkeypatch.setattr(bench.runner_plane, "backing_topic", lambda _topic, _descriptor: bench.log_of(0))

    result = run(bench, LOAD)

    assert result == PassResult(0, (), (bench.topic_id,))
    assert decisions(bench) == []
    assert bench.live_operations() == []


def change_policies(bench: Bench, turn: int) -> None:
    """Of the topic, which may split without a pause, and of its namespace."""
    bench.store.in_transaction(
        policies.set_topic, bench.topic_id, PolicyOverride(split_cooldown_seconds=0, max_segments=64 + turn)
    )
    bench.store.in_transaction(
        policies.set_namespace, "acme/shop", PolicyOverride(merge_cooldown_seconds=turn), actor="x"
    )


def report_all(bench: Bench, rate: float) -> None:
    """The same load everywhere."""
    report(bench, dict.fromkeys([segment.segment_id for segment in bench.layout.active], rate))


def test_passes_reports_consumers_policies_and_runners_at_once_never_block_each_other(bench: Bench) -> None:
    """Nobody meets a deadlock: an error of any thread fails the test."""
    bench.topic_with(4)
    acts: list[Callable[[int], object]] = [
        lambda _: run(bench),
        lambda turn: report_all(bench, (HOT, COLD, WARM)[turn % 3]),
        lambda turn: register(bench, f"c-{turn}"),
        lambda turn: change_policies(bench, turn),
        lambda _: run_due(bench.context()),
    ]

    def repeat(act: Callable[[int], object]) -> None:
        for turn in range(20):
            act(turn)

    with ThreadPoolExecutor(len(acts)) as pool:
        list(pool.map(repeat, acts))
    bench.settle()

    bench.check_laws()


def test_the_fence_is_asked_in_each_transaction_and_stops_the_pass(bench: Bench) -> None:
    bench.store.in_transaction(insert_fleet, 4, 1, rate=HOT)
    asked = []

    def fence(_tx: Connection) -> None:
        asked.append(1)
        if len(asked) > 2:
            raise FencedOut("the lease is gone")

    with pytest.raises(FencedOut):
        run(bench, batch_topics=1, demand_right_to_act=fence)

    assert bench.scalar("SELECT count(*) FROM cleave.operation") == 2
