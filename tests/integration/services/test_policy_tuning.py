"""Tuning on a real history: a planted better setting is found and proposed, and where nothing is better nothing is."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from controller.bootstrap import Application, build_trials
from controller.domain.errors import NotFound, StoreUnavailable
from controller.domain.policy import PolicyOverride
from controller.services import policy_candidates
from controller.services.policy_candidates import Trials, TunedTopic, tuning
from controller.settings import load_settings
from controller.store.backtests import BacktestAnswer
from controller.store.topics import policies
from tests.support.bench import TOPIC, Bench
from tests.support.recorded import keep_series
from tests.support.reports import milliseconds

pytestmark = pytest.mark.timeout(300)

DAYS = 1.6
"""A third of what a topic needs by default: each minute of them is simulated some twenty times."""
NOW = datetime.now(UTC).replace(second=0, microsecond=0)


def swing(minute: int) -> float:
    """Up to three segments' worth, twice a day."""
    return max(500.0, 30_000.0 * math.sin(minute / 720 * 2 * math.pi))


def still(_minute: int) -> float:
    return 3_000.0


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLEAVE_HISTORY_URL", str(tmp_path / "history"))
    monkeypatch.setenv("SPARK_MASTER", "none")
    return tmp_path / "history"


@pytest.fixture
def short_past(monkeypatch: pytest.MonkeyPatch) -> None:
    """`DAYS` are enough."""
    for name in ("DAYS_SEARCHED", "DAYS_CONFIRMED"):
        monkeypatch.setattr(tuning, name, getattr(tuning, name) / 3)


@pytest.fixture
def trials(bench: Bench, url: Path) -> Trials:
    return build_trials(Application(load_settings(database_url=bench.url), bench.store))


def topic(bench: Bench, **parameters: Any) -> None:
    bench.create(1)
    bench.store.in_transaction(
        policies.set_topic, bench.topic_id, PolicyOverride(**{"profile": "adaptive", **parameters})
    )


def record(bench: Bench, url: Path, rate: Callable[[int], float]) -> None:
    """`rate` of the minutes of `DAYS`, until now."""
    minutes = round(DAYS * 1_440)
    begins = NOW - timedelta(minutes=minutes)
    keep_series(
        url,
        {
            milliseconds(begins + timedelta(minutes=minute)): {(bench.topic_id, 0): rate(minute)}
            for minute in range(2, minutes + 1, 2)
        },
    )


def tune(bench: Bench, trials: Trials, key: str = "night-1") -> TunedTopic:
    [answer] = policy_candidates.tune(
        bench.store, trials, (TOPIC,), days=DAYS, actor="airflow", request_key=key
    )
    return answer


@pytest.mark.usefixtures("short_past")
def test_a_planted_better_setting_is_found_and_proposed_with_its_evidence(
    bench: Bench, url: Path, trials: Trials
) -> None:
    """Whoever set `target_use` to 0.35 pays for three times the segments."""
    topic(bench, target_use=0.35)
    record(bench, url, swing)

    answer = tune(bench, trials)

    assert answer.candidate_id is not None, answer
    assert answer.parameters["target_use"] >= 0.7
    assert answer.looked_at >= 15
    assert answer.confirmed["candidate"] < 0.98 * answer.confirmed["in-force"]
    [row] = bench.rows(
        "SELECT candidate_id, state, override, proposed_by, run_id, regret, live_regret FROM inspect.policy_candidates"
    )
    assert row[:5] == (answer.candidate_id, "shadow", dict(answer.parameters), "airflow", answer.run_ids[-1])
    assert row[5:] == (
        pytest.approx(answer.confirmed["candidate"]),
        pytest.approx(answer.confirmed["in-force"]),
    )
    [(end_of_search, begin_of_proof)] = bench.rows(
        "SELECT max(until) FILTER (WHERE run_id <> :run), min(since) FILTER (WHERE run_id = :run) FROM inspect.backtest_runs",
        run=answer.run_ids[-1],
    )
    assert end_of_search == begin_of_proof

    again = tune(bench, trials, "night-2")
    assert (again.candidate_id, again.looked_at) == (None, 0)
    assert "already has a candidate in shadow" in again.why
    policy_candidates.withdraw(bench.store, TOPIC, actor="ada", reason="not before the holidays")
    third = tune(bench, trials)
    assert third.candidate_id is None
    assert (
        third.why
        == f"the same policy was withdrawn as candidate {answer.candidate_id}: not before the holidays"
    )


@pytest.mark.usefixtures("short_past")
def test_a_repeated_request_does_not_use_backtests_of_a_policy_that_is_no_longer_in_force(
    bench: Bench, url: Path, trials: Trials
) -> None:
    """The first request ended before the proof; what it found better than the earlier policy is not proposed for the present one."""

    def ends_before_the_proof(*load: Any, request_key: str, **options: Any) -> BacktestAnswer:
        if "/confirm" in request_key:
            raise StoreUnavailable("away")
        return trials(*load, request_key=request_key, **options)

    topic(bench, target_use=0.35)
    record(bench, url, swing)
    with pytest.raises(StoreUnavailable):
        tune(bench, ends_before_the_proof)
    bench.store.in_transaction(
        policies.set_topic, bench.topic_id, PolicyOverride(profile="adaptive", target_use=0.36)
    )

    answer = tune(bench, trials)

    [(run_id,)] = bench.rows("SELECT min(run_id) FROM cleave.backtest_run")
    assert answer.why == (
        f"the policy in force was changed since backtest {run_id}; repeat the tuning under a fresh request key"
    )
    assert (answer.candidate_id, answer.parameters) == (None, {})

    bench.store.in_transaction(
        policies.set_topic, bench.topic_id, PolicyOverride(profile="adaptive", target_use=0.35)
    )
    assert tune(bench, trials).candidate_id is not None


@pytest.mark.usefixtures("short_past")
def test_where_the_live_policy_is_best_nothing_is_proposed(bench: Bench, url: Path, trials: Trials) -> None:
    topic(bench)
    record(bench, url, still)

    answer = tune(bench, trials)

    assert answer.why == "no variant that was tried cost less than the policy in force"
    assert (answer.candidate_id, answer.confirmed) == (None, {})
    assert answer.looked_at >= 14
    assert bench.rows("SELECT count(*) FROM cleave.policy_candidate") == [(0,)]


@pytest.mark.usefixtures("short_past")
def test_what_was_better_only_where_it_was_searched_is_not_proposed(
    bench: Bench, url: Path, trials: Trials
) -> None:
    topic(bench, target_use=0.35)
    record(bench, url, lambda minute: swing(minute) if minute < 0.69 * DAYS * 1_440 else still(minute))

    answer = tune(bench, trials)

    assert answer.searched["in-force"] > min(answer.searched.values())
    assert answer.why.startswith("not confirmed: regret ")
    assert bench.rows("SELECT count(*) FROM cleave.policy_candidate") == [(0,)]


@pytest.mark.usefixtures("short_past")
def test_a_topic_that_only_the_policy_in_force_can_simulate_gets_the_reason(
    bench: Bench, url: Path, trials: Trials
) -> None:
    def fails_alone(
        variants: Any, topics: Any, *period: Any, request_key: str, **options: Any
    ) -> BacktestAnswer:
        if request_key.endswith("search alone"):
            return BacktestAnswer(1_000, "here", (), {TOPIC: "InvalidInput: the cost under adaptive is inf"})
        return trials(variants, topics, *period, request_key=request_key, **options)

    topic(bench)
    record(bench, url, still)

    answer = tune(bench, fails_alone)

    assert answer.why == "InvalidInput: the cost under adaptive is inf"
    assert (answer.candidate_id, answer.run_ids[-1]) == (None, 1_000)


@pytest.mark.usefixtures("short_past")
@pytest.mark.parametrize(
    ("errors", "why"),
    [
        ({TOPIC: "InvalidInput: the cost under pip483 is inf"}, "InvalidInput: the cost under pip483 is inf"),
        ({}, "at least one variant has no result for it in the backtest"),
    ],
    ids=["run", "stored"],
)
def test_a_topic_of_which_only_some_variants_were_simulated_gets_the_reason(
    bench: Bench, url: Path, trials: Trials, errors: dict[str, str], why: str
) -> None:
    """Spark simulates a load in parts, of which one can fail; a stored run has no errors."""

    def fails_in_part(variants: Any, *load: Any, request_key: str, **options: Any) -> BacktestAnswer:
        trial = trials(variants[:1], *load, request_key=request_key, **options)
        return replace(trial, left_out=errors) if request_key.endswith("search alone") else trial

    topic(bench)
    record(bench, url, still)

    answer = tune(bench, fails_in_part)

    assert answer.why == why
    assert (answer.candidate_id, answer.looked_at, len(answer.run_ids)) == (None, 0, 2)


def test_too_short_a_past_says_so(bench: Bench, url: Path, trials: Trials) -> None:
    topic(bench)
    assert "no load was recorded" in tune(bench, trials, "night-0").why
    record(bench, url, still)

    answer = tune(bench, trials)

    assert answer.why == "1.1 recorded days to search, but 3 are needed"


@pytest.mark.parametrize(
    ("parameters", "why"),
    [
        ({"enabled": False}, "not enabled"),
        ({"profile": "pip483", "strict_pulsar": True}, "strict_pulsar"),
    ],
)
def test_topics_that_have_nothing_to_tune_are_left_out(
    bench: Bench, trials: Trials, parameters: dict[str, Any], why: str
) -> None:
    topic(bench, **parameters)

    answer = tune(bench, trials)

    assert why in answer.why
    assert bench.rows("SELECT count(*) FROM cleave.backtest_run") == [(0,)]


def test_a_topic_that_there_is_not_is_refused(bench: Bench, trials: Trials) -> None:
    with pytest.raises(NotFound, match="no live topic"):
        tune(bench, trials)
