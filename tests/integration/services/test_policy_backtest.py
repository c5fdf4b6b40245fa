"""Backtests over a real database and a real history: what is gathered, what is kept, what is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from controller.domain.errors import InvalidInput, InvalidPolicy, NotFound
from controller.domain.policy import PolicyOverride
from controller.landing.history import RateHistory
from controller.services import backtest_computation
from controller.services.policy_backtest import (
    Loads,
    PolicyBacktest,
    Trace,
    code_versions,
)
from controller.store.backtests import BacktestAnswer
from controller.store.topics import policies
from spark_jobs.policy_backtest import IN_FORCE, Candidate, Question
from tests.support.bench import TOPIC, Bench
from tests.support.recorded import keep_rates
from tests.support.reports import milliseconds

QUESTION = Question((Candidate("in-force", IN_FORCE), Candidate("adaptive", "adaptive")))
SINCE = datetime.now(UTC).replace(second=0, microsecond=0) + timedelta(hours=1)
UNTIL = SINCE + timedelta(hours=2)
"""In the future, so that the topics of these tests are older."""


@pytest.fixture
def history(tmp_path: Path) -> RateHistory:
    return RateHistory(str(tmp_path / "history"))


@pytest.fixture
def backtest(bench: Bench, history: RateHistory) -> PolicyBacktest:
    return PolicyBacktest(bench.store, history, backtest_computation.compute, "none", {})


def record(bench: Bench, history: RateHistory, rate: float = 15_000.0) -> None:
    """Two hours of load of the topic's two segments, hot in the second one; and of another topic."""
    for minute in range(1, 121):
        hot = rate if minute > 60 else rate / 10
        keep_rates(
            history,
            milliseconds(SINCE) + minute * 60_000,
            {(bench.topic_id, 0): hot, (bench.topic_id, 1): 100.0, (bench.topic_id + 1_000, 0): 9e9},
        )


def ask(
    backtest: PolicyBacktest, question: Question = QUESTION, key: str = "key", **loads: Any
) -> BacktestAnswer:
    found = Loads(**{"since": SINCE, "until": UNTIL} | loads)
    return backtest.run(question, found, asked_by="ada", request_key=key)


def test_a_topics_past_is_answered_and_kept(
    bench: Bench, history: RateHistory, backtest: PolicyBacktest
) -> None:
    bench.create(2)
    record(bench, history)

    answer = ask(backtest, topics=(TOPIC,))

    assert [(one.load, one.policy, one.topic_id) for one in answer.results] == [
        (TOPIC, "adaptive", bench.topic_id),
        (TOPIC, "in-force", bench.topic_id),
    ]
    assert all(one.cost >= one.least_cost > 0 for one in answer.results)
    assert answer.results[1].figures["reshapes"] >= 1
    assert answer.results[1].figures["measured"] == 1.0
    [run] = bench.rows(
        "SELECT state, asked_by, engine, code_version, results, policies, loads FROM inspect.backtest_runs"
    )
    assert run == ("done", "ada", "here", code_versions(), 2, ["in-force", "adaptive"], [TOPIC])
    kept = bench.rows("SELECT policy, cost, least_cost FROM inspect.backtest_results ORDER BY policy")
    assert kept == [(one.policy, one.cost, one.least_cost) for one in answer.results]


def test_the_skew_between_segments_is_seen(
    bench: Bench, history: RateHistory, backtest: PolicyBacktest
) -> None:
    """All the load lies on the lower half of the ring: two segments cannot share it."""
    bench.create(2)
    record(bench, history)
    still = Question((Candidate("still", IN_FORCE, {"max_segments": 2}),))

    [one] = ask(backtest, still, topics=(TOPIC,)).results

    assert one.figures["overload_seconds"] == 3_600.0


def test_the_inputs_say_what_the_results_follow_from(
    bench: Bench, history: RateHistory, backtest: PolicyBacktest
) -> None:
    bench.create(2)
    bench.store.in_transaction(
        policies.set_topic, bench.topic_id, PolicyOverride(max_segments=5), actor="tests"
    )
    record(bench, history)
    ask(backtest, topics=(TOPIC,))

    [(inputs,)] = bench.rows("SELECT inputs FROM inspect.backtest_runs")

    [load] = inputs["loads"]
    assert (load["topic_id"], load["segments"], load["policy"]["max_segments"]) == (bench.topic_id, 2, 5)
    assert (load["start_ms"], load["end_ms"]) == (milliseconds(SINCE), milliseconds(UNTIL))
    assert [one["rule"] for one in inputs["policies"]] == [IN_FORCE, "adaptive"]
    assert (inputs["prices"]["excess"], inputs["seeds"], inputs["asked"]["topics"]) == (20.0, [0], [TOPIC])


def test_a_request_that_is_repeated_gets_the_results_that_are_there(
    bench: Bench, history: RateHistory, backtest: PolicyBacktest
) -> None:
    bench.create(2)
    record(bench, history)
    first = ask(backtest, topics=(TOPIC,))
    history.expire(UNTIL.date() + timedelta(days=1))

    again = ask(backtest, topics=(TOPIC,))

    assert again.was_done
    assert (again.run_id, again.engine) == (first.run_id, "here")
    assert again.results == first.results


def test_the_same_question_gives_the_same_figures(
    bench: Bench, history: RateHistory, backtest: PolicyBacktest
) -> None:
    bench.create(2)
    record(bench, history)

    assert ask(backtest, key="a").results == ask(backtest, key="b").results


def test_a_namespace_or_everything_may_be_asked_about(
    bench: Bench, history: RateHistory, backtest: PolicyBacktest
) -> None:
    bench.create(2)
    record(bench, history)

    assert {one.load for one in ask(backtest, key="a", namespace="acme/shop").results} == {TOPIC}
    assert {one.load for one in ask(backtest, key="b").results} == {TOPIC}
    with pytest.raises(NotFound, match="namespace 'acme/none'"):
        ask(backtest, key="c", namespace="acme/none")


def test_a_topic_without_load_is_left_out_and_alone_it_is_an_error(
    bench: Bench, history: RateHistory, backtest: PolicyBacktest
) -> None:
    bench.create(2)
    with pytest.raises(NotFound, match="no load was recorded"):
        ask(backtest, topics=(TOPIC,))
    record(bench, history)
    quiet = TOPIC + "-quiet"
    bench.topic_name = quiet
    bench.create(1)

    answer = ask(backtest, key="b", topics=(TOPIC, quiet))

    assert {one.load for one in answer.results} == {TOPIC}
    assert answer.left_out == {quiet: "no load was recorded"}
    assert bench.rows(
        "SELECT state, error LIKE '%no load was recorded%' FROM inspect.backtest_runs ORDER BY 1"
    ) == [
        ("done", None),
        ("failed", True),
    ]


def test_a_policy_that_nobody_can_read_leaves_its_topic_out(
    bench: Bench, history: RateHistory, backtest: PolicyBacktest
) -> None:
    bench.create(2)
    record(bench, history)
    bench.execute(
        """UPDATE cleave.topic SET policy = '{"max_segments": "x"}', row_version = row_version + 1"""
    )

    with pytest.raises(NotFound):
        ask(backtest)


def test_what_cannot_be_asked_is_refused(
    bench: Bench, history: RateHistory, backtest: PolicyBacktest
) -> None:
    bench.create(2)
    record(bench, history)

    with pytest.raises(InvalidInput, match="is unknown; choose one of"):
        ask(backtest, Question((Candidate("x", "x"),)), key="a")
    with pytest.raises(InvalidPolicy, match="max_segments"):
        ask(backtest, Question((Candidate("x", "pip483", {"max_segments": 0}),)), key="b")
    with pytest.raises(NotFound, match="no live topic"):
        ask(backtest, key="c", topics=(TOPIC, "topic://acme/shop/none"))


def test_a_candidate_that_is_valid_for_none_of_several_topics_is_refused(
    bench: Bench, history: RateHistory, backtest: PolicyBacktest
) -> None:
    bench.create(2)
    record(bench, history)
    bench.topic_name = TOPIC + "-other"
    bench.create(1)

    with pytest.raises(InvalidPolicy, match="max_segments"):
        ask(backtest, Question((Candidate("x", "pip483", {"max_segments": 0}),)))


def test_a_trace_needs_no_topic(backtest: PolicyBacktest, tmp_path: Path) -> None:
    path = tmp_path / "load.csv"
    lines = [
        f"2026-01-{day:02} {hour:02}:00:00,{100 + 50 * (hour % 12)}" for day in (1, 2) for hour in range(24)
    ]
    path.write_text("\n".join(["timestamp,value", *lines]))
    trace = Trace("load.csv", (path,), mean_load=5.6, days=1)

    answer = ask(backtest, traces=(trace,))

    assert {(one.load, one.topic_id) for one in answer.results} == {("load.csv", None)}
    assert all(one.least_cost > 24 * 5.6 * 0.8 for one in answer.results)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("timestamp,value\n", "0 reading"),
        ("when,what\n1,2\n3,4\n", "timestamp"),
        ("timestamp,value\nyesterday,1\ntoday,2\n", "isoformat"),
        ("timestamp,value\n2026-01-01 00:00:00,1\n2026-01-02 00:00:00,x\n", "x"),
        ("timestamp,value\n2026-01-01 00:00:00,1\n2026-01-02 00:00:00\n", "line 3"),
        ("timestamp,value\n2026-01-01 00:00:00,1\n2026-01-02 00:00:00,1\n", "ends before day"),
        (None, "No such file"),
    ],
)
def test_a_file_that_is_no_trace_is_refused_by_name(
    backtest: PolicyBacktest, tmp_path: Path, text: str | None, words: str
) -> None:
    path = tmp_path / "bad.csv"
    if text is not None:
        path.write_text(text)

    with pytest.raises(InvalidInput, match=words) as refused:
        ask(backtest, traces=(Trace("bad.csv", (path,), mean_load=5.6),))
    assert "bad" in str(refused.value)
