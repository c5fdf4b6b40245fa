"""One topic whose rows, logs or figures cannot be used, among healthy ones: the healthy are served, the poisoned is said."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from controller.clock import SystemClock
from controller.dataplane.base import Counters, CreatedLog, Successor
from controller.domain.decision import Evaluation, Lane, Split
from controller.domain.errors import CleaveError, Retryable
from controller.domain.evaluation_input import EvaluationInput
from controller.domain.gate_states import GateState
from controller.domain.operation import OperationState
from controller.domain.policy import PolicyOverride
from controller.landing.area import LandingArea
from controller.landing.history import RateHistory
from controller.services import (
    backtest_computation,
    deletion_sweeper,
    garbage_collector,
    reconciler,
    segment_admin,
    subscription_admin,
    topic_admin,
)
from controller.services.autoscaler import batch
from controller.services.collection.load_collector import LoadCollector
from controller.services.consumer_sessions import leader as session_leader
from controller.services.consumer_sessions.requests import Register, Request
from controller.services.consumer_sessions.settlement import Settlement
from controller.services.operation_runner import run_due
from controller.services.policy_backtest import Loads, PolicyBacktest
from controller.services.reconciler import FindingKind
from controller.services.segment_admin import splitting
from controller.store.journal.request_keys import Intent
from controller.store.topics import policies
from controller.store.topics.bucket_owners import SubscriptionKey
from controller.web.fleet_metrics import FleetMetrics
from spark_jobs.policy_backtest import IN_FORCE, Candidate, Question
from tests.support.bench import TOPIC, Bench
from tests.support.gated_logs import GatedBench
from tests.support.led_topic import Leader
from tests.support.passes import HOT, LOAD, run
from tests.support.recorded import keep_rates
from tests.support.reports import milliseconds, report_load

POISONED = "topic://acme/odd/poisoned"


@pytest.fixture
def poisoned(bench: Bench) -> int:
    """A healthy topic of two segments, and the id of another one like it."""
    bench.topic_with(2, subscriptions=())
    request = bench.request()
    options = {"segments": 2, "data_plane": bench.plane.name}
    bench.finish(topic_admin.create_topic(bench.store, bench.planes, POISONED, request, **options))
    return int(bench.scalar("SELECT topic_id FROM cleave.topic WHERE name = :name", name=POISONED))


def by_hand(bench: Bench, statement: str, **parameters: object) -> None:
    """What no trigger and no constraint of this program lets through."""
    bench.execute(f"SET LOCAL session_replication_role = replica; {statement}", **parameters)


def log_of(bench: Bench, topic_id: int, segment_id: int) -> str:
    statement = "SELECT backing_topic FROM cleave.segment WHERE topic_id = :t AND segment_id = :s"
    return str(bench.scalar(statement, t=topic_id, s=segment_id))


def set_aside(bench: Bench) -> list[tuple[Any, ...]]:
    return bench.rows("SELECT batch, topic, times FROM inspect.set_aside WHERE is_current")


def unreadable_rows(bench: Bench, topic_id: int, _monkeypatch: pytest.MonkeyPatch) -> None:
    """An instant that Python has no date for."""
    bench.execute(
        "UPDATE cleave.segment_load SET modified_at = '20000-01-01', row_version = row_version + 1 WHERE topic_id = :t",
        t=topic_id,
    )


def undecidable(_bench: Bench, topic_id: int, monkeypatch: pytest.MonkeyPatch) -> None:
    decide = batch.decide

    def trouble(situation: EvaluationInput, lanes: Collection[Lane]) -> Evaluation:
        if situation.policy.max_segments == 77:
            raise ArithmeticError("a bug")
        return decide(situation, lanes)

    monkeypatch.setattr(batch, "decide", trouble)


def inputs_that_no_json_holds(_bench: Bench, topic_id: int, monkeypatch: pytest.MonkeyPatch) -> None:
    to_json = EvaluationInput.to_json

    def trouble(situation: EvaluationInput) -> str:
        if situation.policy.max_segments == 77:
            raise ValueError("a bug")
        return to_json(situation)

    monkeypatch.setattr(EvaluationInput, "to_json", trouble)


def impossible(_bench: Bench, _topic_id: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An action that the layout does not accept."""
    decide = batch.decide

    def trouble(situation: EvaluationInput, lanes: Collection[Lane]) -> Evaluation:
        if situation.policy.max_segments == 77:
            return Evaluation((Split(99),))
        return decide(situation, lanes)

    monkeypatch.setattr(batch, "decide", trouble)


@pytest.mark.parametrize("poison", [unreadable_rows, undecidable, impossible, inputs_that_no_json_holds])
def test_a_pass_decides_on_the_healthy(
    bench: Bench,
    poisoned: int,
    monkeypatch: pytest.MonkeyPatch,
    poison: Callable[[Bench, int, pytest.MonkeyPatch], None],
) -> None:
    with bench.store.transaction() as tx:
        policies.set_topic(tx, poisoned, PolicyOverride(max_segments=77), actor="t")
        for topic_id in (bench.topic_id, poisoned):
            report_load(tx, topic_id, {0: 3 * HOT, 1: 10.0})
    poison(bench, poisoned, monkeypatch)

    result = run(bench, LOAD)

    acting = {outcome.topic_id for outcome in result.outcomes if outcome.operation_ids}
    assert acting == {bench.topic_id}
    assert result.still_dirty == (poisoned,)
    assert set_aside(bench) == [("evaluation", POISONED, 1)]
    assert bench.rows("SELECT topic_id FROM cleave.evaluation WHERE not_before > clock_timestamp()") == [
        (poisoned,)
    ]


def test_an_answer_that_holds_beyond_all_calendars_holds_for_ever(bench: Bench, poisoned: int) -> None:
    with bench.store.transaction() as tx:
        for topic_id in (bench.topic_id, poisoned):
            report_load(tx, topic_id, {0: 3 * HOT, 1: 10.0})
    bench.execute(
        "UPDATE cleave.topic SET last_split_at = 'infinity', row_version = row_version + 1 WHERE topic_id = :t",
        t=poisoned,
    )

    result = run(bench, LOAD)

    assert {outcome.topic_id for outcome in result.outcomes if outcome.operation_ids} == {bench.topic_id}
    assert result.still_dirty == ()
    assert bench.scalar("SELECT load_due FROM cleave.evaluation WHERE topic_id = :t", t=poisoned) is not None


def unreadable_origin(bench: Bench, log: str) -> None:
    """An answer about the log that its data plane's client cannot read."""
    bench.execute("ALTER TABLE embedded.log DROP CONSTRAINT log_origin_is_object")
    bench.execute("UPDATE embedded.log SET origin = '[1]' WHERE name = :log", log=log)


def test_the_reconciler_repairs_the_healthy(bench: Bench, poisoned: int) -> None:
    unreadable_origin(bench, log_of(bench, poisoned, 0))
    bench.plane.terminate_segment(bench.log_of(0))

    findings, _ = reconciler.reconcile_topics(bench.store, bench.planes)

    assert [(one.topic, one.segment_id) for one in findings] == [(TOPIC, 0)]
    assert set_aside(bench) == [("maintenance", POISONED, 1)]


def test_the_gates_of_the_healthy_are_compared(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The poisoned topic comes first."""
    bench = GatedBench(database)
    try:
        poisoned = _gated_topic(bench, POISONED)
        healthy = _gated_topic(bench, TOPIC)

        def trouble(log: str, subscription: str) -> GateState:
            if "/odd/" in log:
                raise ArithmeticError("a bug")
            return GateState.CLOSED

        monkeypatch.setattr(bench.gated, "gate_state", trouble)
        findings, _ = reconciler.reconcile_topics(bench.store, bench.planes)
        alone = reconciler.reconcile(bench.store, bench.planes, poisoned)

        assert {(finding.topic, finding.kind) for finding in findings} == {(TOPIC, FindingKind.GATE_SHUT)}
        assert alone == ()
        assert (poisoned < healthy, set_aside(bench)) == (True, [("maintenance", POISONED, 2)])
    finally:
        bench.close()


def _gated_topic(bench: GatedBench, name: str) -> int:
    """Return the id of a new topic whose gates were opened because their parent is drained."""
    bench.topic_name = name
    bench.open_split()
    return bench.topic_id


def test_the_garbage_of_the_healthy_is_collected(bench: Bench, poisoned: int) -> None:
    for name in (TOPIC, POISONED):
        bench.finish(_split(bench, name))
    unreadable_origin(bench, log_of(bench, poisoned, 0))

    report = garbage_collector.collect(bench.store, bench.planes, retention_minutes=0.0)

    assert report.segments == {TOPIC: (0,)}
    assert [(one.topic, one.segment_id) for one in report.kept] == [(POISONED, None)]
    assert set_aside(bench) == [("maintenance", POISONED, 1)]


def _split(bench: Bench, name: str) -> Intent:
    return segment_admin.submit(bench.store, bench.planes, name, splitting(0), bench.request())


def test_the_sweeper_deletes_the_logs_of_the_healthy(bench: Bench, poisoned: int) -> None:
    logs = {
        name: log_of(bench, topic_id, 0) for name, topic_id in ((TOPIC, bench.topic_id), (POISONED, poisoned))
    }
    for name in logs:
        bench.finish(topic_admin.delete_topic(bench.store, name, bench.request()))
    unreadable_origin(bench, logs[POISONED])

    swept = deletion_sweeper.sweep(bench.store, bench.planes)

    assert logs[TOPIC] in swept.absent
    assert swept.failed.keys() == {logs[POISONED]}
    error = "SELECT last_error FROM cleave.deletion_entry WHERE backing_topic = :log"
    assert "no attribute" in bench.scalar(error, log=logs[POISONED])


def test_the_operations_of_the_healthy_are_done(
    bench: Bench, poisoned: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are of one set: they share each call of the data plane."""
    create = bench.plane.create_successors

    def trouble(successors: Sequence[Successor]) -> Mapping[str, CreatedLog]:
        if any("/odd/" in one.backing_topic for one in successors):
            raise ArithmeticError("a bug")
        return create(successors)

    monkeypatch.setattr(bench.runner_plane, "create_successors", trouble)
    operations = {name: _split(bench, name).operation.operation_id for name in (POISONED, TOPIC)}
    run_due(bench.context(), limit=10)

    assert bench.operation(operations[TOPIC]).state is OperationState.DONE
    odd = operations[POISONED]
    assert bench.operation(odd).state in (OperationState.ABORTING, OperationState.ABORTED)
    told = "SELECT row_to_json(o)::text FROM inspect.operations o WHERE operation_id = :i"
    steps = "SELECT json_agg(s)::text FROM cleave.operation_step s WHERE operation_id = :i"
    assert "ArithmeticError" in bench.scalar(told, i=odd) + bench.scalar(steps, i=odd)


def test_a_backtest_answers_for_the_healthy(bench: Bench, poisoned: int, tmp_path: Path) -> None:
    since = datetime.now(UTC).replace(second=0, microsecond=0) + timedelta(hours=1)
    history = RateHistory(str(tmp_path))
    for minute in range(1, 61):
        rates: Mapping[tuple[int, int], Any] = {(bench.topic_id, 0): 100.0, (poisoned, 0): 1e300}
        keep_rates(history, milliseconds(since) + minute * 60_000, rates)
    question = Question((Candidate("in-force", IN_FORCE),), seeds=(1,))

    answer = PolicyBacktest(bench.store, history, backtest_computation.compute, "none", {}).run(
        question, Loads(since, since + timedelta(hours=1)), asked_by="ada", request_key="key"
    )

    assert {one.load for one in answer.results} == {TOPIC}
    assert answer.left_out.keys() == {POISONED}
    assert "ValueError" in answer.left_out[POISONED]


def test_the_sessions_of_the_healthy_are_settled(
    bench: Bench, poisoned: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle = session_leader.settle

    def trouble(tx: Connection, key: SubscriptionKey, *more: Any, **options: Any) -> Settlement:
        if key.topic_id == poisoned:
            raise ArithmeticError("a bug")
        return settle(tx, key, *more, **options)

    monkeypatch.setattr(session_leader, "settle", trouble)
    for name in (POISONED, TOPIC):
        bench.finish(subscription_admin.create_subscription(bench.store, name, "billing", bench.request()))
    leader = Leader(bench, "w1")
    try:
        leader.leases.round()
        registers: list[Request] = [
            Register(key=SubscriptionKey(topic_id, "billing"), consumer="c", incarnation="one")
            for topic_id in (poisoned, bench.topic_id)
        ]
        refused, answered = leader.answers(registers)
    finally:
        leader.stop()

    assert (refused, answered) == (Retryable, None)


def test_the_counters_of_the_healthy_are_landed(bench: Bench, poisoned: int, tmp_path: Path) -> None:
    """The sum of what was delivered is above 2^63 in one log, and another one's counter is."""
    log, most = log_of(bench, poisoned, 0), 2**63 - 1
    bench.plane.create_subscription(log, "a")
    bench.plane.create_subscription(log, "b")
    update = "UPDATE embedded.cursor SET msg_out = :most WHERE log_id = (SELECT log_id FROM embedded.log WHERE name = :log)"
    by_hand(bench, update, most=most, log=log)
    odd, sample = log_of(bench, poisoned, 1), bench.plane.sample

    def odd_sample(logs: Sequence[str]) -> Mapping[str, Counters]:
        return {
            name: replace(one, msg_in=2**64) if name == odd else one for name, one in sample(logs).items()
        }

    bench.runner_plane.sample = odd_sample  # type: ignore[method-assign]
    collector = LoadCollector(
        bench.store,
        bench.planes,
        LandingArea(str(tmp_path)),
        name="c",
        interval_seconds=1.0,
        clock=SystemClock(),
    )
    tick = collector.tick()

    assert tick.path is not None
    rows = pq.read_table(tmp_path / tick.path).to_pylist()
    landed = {(row["topic_id"], row["segment_id"]): row["msg_out"] for row in rows}
    assert landed == {(bench.topic_id, 0): 0, (bench.topic_id, 1): 0, (poisoned, 0): most}


def test_every_view_and_the_metrics_show_the_healthy(bench: Bench, poisoned: int) -> None:
    with bench.store.transaction() as tx:
        report_load(tx, bench.topic_id, {0: 10.0, 1: 20.0})
        report_load(tx, poisoned, {0: 1e300, 1: 0.0})
    key = "(topic_id, segment_id, bins, messages, fresh_until) VALUES (:t, 0, '{3e38}', 'NaN', 'infinity')"
    by_hand(
        bench,
        """UPDATE cleave.topic SET policy = '{"split_msg_rate_in": 1e-300, "load_memory_seconds": "NaN"}' WHERE topic_id = :t;"""
        f"INSERT INTO cleave.segment_sketch {key};"
        "INSERT INTO cleave.drain_backlog (topic_id, segment_id, messages, subscription)"
        " SELECT :t, s, 9223372036854775807, 'x' FROM generate_series(0, 1) AS s",
        t=poisoned,
    )

    views = bench.rows(
        "SELECT table_name FROM information_schema.views WHERE table_schema = 'inspect' ORDER BY 1"
    )
    broken = {}
    for (view,) in views:
        try:
            bench.rows(f"SELECT * FROM inspect.{view}")
        except (CleaveError, DBAPIError) as error:
            broken[view] = str(error)
    assert broken == {}
    registry = CollectorRegistry()
    registry.register(FleetMetrics(bench.store))
    hottest = "cleave_topic_hottest_ratio"
    assert registry.get_sample_value(hottest, {"topic": TOPIC}) == pytest.approx(20.0 / 10_000, rel=1)
    assert registry.get_sample_value(hottest, {"topic": POISONED}) is not None
