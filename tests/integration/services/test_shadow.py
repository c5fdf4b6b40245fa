"""Candidates in shadow beside live passes: they are asked, they never act, and nothing live is different with them."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from types import ModuleType
from typing import Any

import pytest
from sqlalchemy import Connection, text
from structlog.testing import capture_logs

from controller.domain.decision import Lane
from controller.domain.errors import (
    Conflict,
    InvalidInput,
    InvalidPolicy,
    NotFound,
    StoreUnavailable,
    TopicNotFound,
)
from controller.domain.evaluation_input import EvaluationInput
from controller.domain.evaluator import decide
from controller.domain.policy import PolicyOverride
from controller.services import policy_candidates
from controller.services.autoscaler import shadows
from controller.store import backtests
from controller.store.backtests import BacktestRequest, BacktestResult
from controller.store.decisions import candidates, shadow_decisions
from controller.store.decisions.candidates import CandidateRow, CandidateState
from controller.store.topics import policies
from controller.tasks.row_retention import keep_partitions
from tests.support.bench import TOPIC, Bench
from tests.support.passes import COLD, HOT, LOAD, WARM, decisions, report, run

EAGER = PolicyOverride(split_msg_rate_in=2_000.0, merge_msg_rate_in=100.0)
"""Splits what the policy in force leaves alone."""
SAID = "SELECT acts, live_acts, decision_id FROM inspect.shadow_decisions ORDER BY shadow_id"


def topic(bench: Bench, segments: int = 2, **parameters: Any) -> None:
    bench.topic_with(segments)
    bench.store.in_transaction(
        policies.set_topic, bench.topic_id, PolicyOverride(**{"profile": "pip483", **parameters})
    )


def propose(bench: Bench, override: PolicyOverride = EAGER) -> tuple[CandidateRow, bool]:
    return policy_candidates.propose(bench.store, bench.topic_name, override, actor="ada", reason="to see")


def busy_day(bench: Bench, name: str, candidate: PolicyOverride | None) -> tuple[Any, ...]:
    """A topic, and passes over a load that rises and falls: its ledger, its operations and its layout at the end."""
    bench.topic_name = name
    topic(bench)
    if candidate is not None:
        propose(bench, candidate)
    for rates in ({0: WARM, 1: WARM}, {0: HOT, 1: WARM}):
        report(bench, rates)
        for operation_id in run(bench).operation_ids:
            bench.drive(operation_id)
    report(
        bench, dict.fromkeys((s.segment_id for s in bench.layout.active), COLD), cold_for=timedelta(hours=1)
    )
    for operation_id in run(bench).operation_ids:
        bench.drive(operation_id)
    ledger = [
        (
            row.epoch,
            row.input_version,
            row.lanes,
            row.code_version,
            row.decisions,
            list(map(_timeless, row.refusals)),
        )
        for row in decisions(bench)
    ]
    operations = bench.rows(
        "SELECT kind, parent_ids, state FROM cleave.operation o, LATERAL (SELECT array_agg(segment_id) AS parent_ids"
        " FROM cleave.operation_parent p WHERE p.operation_id = o.operation_id) q WHERE topic_id = :t ORDER BY o.operation_id",
        t=bench.topic_id,
    )
    return ledger, operations, [str(s.hash_range) for s in bench.layout.active]


def _timeless(refusal: dict[str, Any]) -> dict[str, Any]:
    return {name: held for name, held in refusal.items() if name not in ("not_before", "needed", "value")}


@pytest.mark.parametrize("candidate", [EAGER, PolicyOverride(profile="adaptive", target_use=0.5)])
def test_live_decisions_are_the_same_with_and_without_a_candidate(
    bench: Bench, candidate: PolicyOverride
) -> None:
    without = busy_day(bench, "topic://acme/shop/plain", None)
    beside = busy_day(bench, "topic://acme/shop/watched", candidate)

    assert without == beside
    assert [one["kind"] for row in without[0] for one in row[4]] != []
    assert bench.rows("SELECT DISTINCT topic FROM inspect.shadow_decisions") == [
        ("topic://acme/shop/watched",)
    ]


def test_a_candidate_says_what_it_would_have_done_and_nothing_is_done(bench: Bench) -> None:
    topic(bench)
    made, _ = propose(bench)
    report(bench, {0: WARM, 1: WARM})

    result = run(bench)

    assert result.operation_ids == ()
    assert bench.live_operations() == []
    [(acts, live_acts, decision_id)] = bench.rows(SAID)
    assert (acts, live_acts) == (["split 0 (msgRateIn)"], [])
    assert (decision_id, decisions(bench)) == (None, [])
    [row] = bench.rows(
        "SELECT topic, state, shadow_decisions, last_decided_at IS NULL FROM inspect.policy_candidates"
    )
    assert row == (TOPIC, "shadow", 1, False)
    assert made.state is CandidateState.SHADOW


def test_it_is_written_once_as_long_as_it_says_the_same(bench: Bench) -> None:
    topic(bench)
    propose(bench)
    told = []
    for rate in (WARM, WARM + 900, WARM + 1_800, COLD):
        report(bench, {0: rate, 1: rate})
        run(bench, LOAD)
        told.append(len(bench.rows(SAID)))

    assert told == [1, 1, 1, 2]


def test_what_it_said_can_be_decided_again_from_its_text(bench: Bench) -> None:
    topic(bench)
    propose(bench)
    report(bench, {0: WARM, 1: WARM})
    run(bench)

    [(situation, lanes, acts, refusals)] = bench.rows(
        "SELECT situation, lanes, decisions, refusals FROM cleave.shadow_decision"
    )

    again = json.loads(decide(EvaluationInput.from_json(situation), frozenset(map(Lane, lanes))).to_json())
    assert (again["decisions"], again["refusals"]) == (acts, refusals)


def test_it_is_asked_on_the_moment_of_the_live_decision(bench: Bench) -> None:
    """Before its intent: a segment that the live policy splits is not busy yet."""
    topic(bench)
    propose(bench, PolicyOverride(profile="adaptive"))
    report(bench, {0: HOT, 1: WARM})

    run(bench)

    [(acts, live_acts, decision_id)] = bench.rows(SAID)
    assert ([one.split(" (")[0] for one in acts], live_acts) == (["split 0"], ["split 0 (msgRateIn)"])
    [row] = decisions(bench)
    assert row.decision_id == decision_id
    [(now, epoch)] = bench.rows("SELECT decided_at, epoch FROM cleave.shadow_decision")
    assert (now, epoch) == (row.decided_at, row.epoch)


@pytest.mark.parametrize("fails", ["ask", "load", "write"])
def test_a_candidate_that_fails_does_not_disturb_what_is_live(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    topic(bench)
    propose(bench)
    report(bench, {0: HOT, 1: WARM})

    def broken(tx: Any, *_arguments: Any, **_options: Any) -> Any:
        if hasattr(tx, "exec_driver_sql"):
            tx.exec_driver_sql("SELECT 1 / 0")
        raise ArithmeticError("a mistake in a rule")

    where, name = {
        "ask": (shadows, "decide"),
        "load": (candidates, "in_shadow"),
        "write": (shadow_decisions, "record"),
    }[fails]
    monkeypatch.setattr(where, name, broken)

    result = run(bench)

    assert len(result.operation_ids) == 1
    assert [one["kind"] for one in decisions(bench)[0].decisions] == ["split"]
    assert bench.rows(SAID) == []


@pytest.mark.parametrize(
    ("where", "name"), [(candidates, "in_shadow"), (shadow_decisions, "record")], ids=["ask", "write"]
)
def test_a_connection_that_is_lost_in_shadow_is_an_outage_and_no_fault_of_the_candidate(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, where: ModuleType, name: str
) -> None:
    topic(bench)
    propose(bench)
    report(bench, {0: HOT, 1: WARM})

    def ended(tx: Connection, *_arguments: Any) -> Any:
        return tx.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))

    with monkeypatch.context() as patch, capture_logs() as lines:
        patch.setattr(where, name, ended)
        with pytest.raises(StoreUnavailable):
            run(bench)

    assert [line for line in lines if "exc_info" in line] == []
    assert decisions(bench) == []


def test_parameters_that_do_not_fit_any_more_are_said_and_stop_nothing(bench: Bench) -> None:
    topic(bench)
    propose(bench, PolicyOverride(max_segments=3))
    bench.store.in_transaction(
        policies.set_topic, bench.topic_id, PolicyOverride(profile="pip483", min_segments=4)
    )
    report(bench, {0: HOT, 1: WARM})

    assert len(run(bench).operation_ids) == 1
    [(acts, reasons)] = bench.rows("SELECT acts, refusals FROM inspect.shadow_decisions")
    assert (acts, [one["reason"] for one in reasons]) == ([], ["invalid-policy"])


def test_a_dry_run_writes_nothing(bench: Bench) -> None:
    topic(bench)
    propose(bench)
    report(bench, {0: WARM, 1: WARM})

    run(bench, dry_run=True)

    assert bench.rows(SAID) == []


def test_a_candidate_that_looks_back_has_its_memory_kept(bench: Bench) -> None:
    topic(bench)
    memory = "SELECT tick_seconds FROM cleave.memory_in_force"
    assert bench.rows(memory) == []

    propose(bench, PolicyOverride(profile="adaptive", load_memory_seconds=450))
    assert bench.rows(memory) == [(10.0,)]
    policy_candidates.withdraw(bench.store, TOPIC, actor="ada", reason="enough")

    assert bench.rows(memory) == []


def test_the_ticks_of_what_is_live_count(bench: Bench) -> None:
    topic(bench, profile="adaptive", load_memory_seconds=900)
    propose(bench, PolicyOverride(load_memory_seconds=450))

    assert bench.rows("SELECT tick_seconds FROM cleave.memory_in_force") == [(20.0,)]


def test_maintenance_forgets_what_is_older_than_the_ledger(bench: Bench) -> None:
    topic(bench)
    propose(bench)
    for age in (89, 91):
        bench.execute(
            "INSERT INTO cleave.shadow_decision (candidate_id, topic_id, decided_at, epoch, lanes, decided_by, code_version,"
            " decisions, refusals, live_decisions, live_refusals, situation)"
            " SELECT candidate_id, topic_id, clock_timestamp() - :age * interval '1 day', 0, '{load}', 'tests', 'none-1',"
            " '[]', '[]', '[]', '[]', '{}' FROM cleave.policy_candidate",
            age=age,
        )

    keep_partitions(dsn=bench.url, extras={}, keep_days=90)

    assert bench.rows("SELECT count(*) FROM cleave.shadow_decision") == [(1,)]


def test_maintenance_forgets_old_backtests_but_for_what_a_candidate_rests_on(bench: Bench) -> None:
    topic(bench)
    propose(bench)
    ids = {key: backtest(bench, key) for key in ("young", "old", "evidence")}
    bench.execute(
        "UPDATE cleave.backtest_run SET asked_at = clock_timestamp() - interval '31 days' WHERE request_key <> 'young'"
    )
    bench.execute("UPDATE cleave.policy_candidate SET run_id = :run", run=ids["evidence"])

    keep_partitions(dsn=bench.url, extras={"backtest_keep_days": 30}, keep_days=90)

    kept = bench.rows("SELECT run_id, load FROM cleave.backtest_result ORDER BY run_id, load")
    assert kept == [(ids["young"], "another"), (ids["young"], TOPIC), (ids["evidence"], TOPIC)]
    assert bench.scalar("SELECT count(*) FROM cleave.backtest_run") == 2


def backtest(bench: Bench, request_key: str) -> int:
    """A run that is done, with a result of the topic and one of another."""
    request = BacktestRequest(request_key, "ada", "none-1", {"policies": [], "loads": [], "prices": {}})
    of_topic = BacktestResult(TOPIC, "in-force", 0, bench.topic_id, 2.0, 1.0, {})
    with bench.store.transaction() as tx:
        run_id = backtests.begin(tx, request).run_id
        others = replace(of_topic, load="another", topic_id=bench.topic_id + 1)
        backtests.finish(tx, run_id, request, "here", [of_topic, others])
    return run_id


def test_a_topic_has_one_candidate_at_a_time(bench: Bench) -> None:
    topic(bench)
    first = propose(bench)

    assert propose(bench) == (first[0], True)
    with pytest.raises(Conflict, match=f"candidate {first[0].candidate_id} .*in shadow"):
        propose(bench, PolicyOverride(max_segments=9))
    with pytest.raises(Conflict, match="at most one candidate in shadow"), bench.store.transaction() as tx:
        candidates.propose(tx, bench.topic_id, EAGER, proposed_by="ada", reason="past the service")
    policy_candidates.withdraw(bench.store, TOPIC, actor="ada", reason="enough")
    assert propose(bench, PolicyOverride(max_segments=9))[0].override == {"max_segments": 9}


def test_what_cannot_be_a_candidate_is_refused(bench: Bench) -> None:
    topic(bench)
    with pytest.raises(InvalidPolicy, match="max_segments"):
        propose(bench, PolicyOverride(max_segments=0))
    with pytest.raises(InvalidInput, match="without a parameter"):
        propose(bench, PolicyOverride())
    with pytest.raises(TopicNotFound):
        policy_candidates.propose(bench.store, "topic://acme/shop/none", EAGER, actor="ada", reason="x")
    with pytest.raises(NotFound, match="cleave policy propose"):
        policy_candidates.withdraw(bench.store, TOPIC, actor="ada", reason="x")


def test_what_was_withdrawn_is_asked_no_more_and_stays_as_it_is(bench: Bench) -> None:
    topic(bench)
    propose(bench)
    ended = policy_candidates.withdraw(bench.store, TOPIC, actor="ada", reason="enough")
    report(bench, {0: WARM, 1: WARM})
    run(bench)

    assert bench.rows(SAID) == []
    assert (ended.state, ended.ended_by, ended.outcome) == (CandidateState.WITHDRAWN, "ada", "enough")
    assert policy_candidates.withdraw(bench.store, TOPIC, actor="eve", reason="again") == ended
