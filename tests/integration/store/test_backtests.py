"""Backtests in the database: a request is one run, its results come all at once, and people can read them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import text

from controller.clock import to_ms
from controller.domain.errors import CleaveError, Terminal
from controller.domain.layout import SegmentLayout
from controller.domain.reshape import plan_split
from controller.store import backtests
from controller.store.backtests import BacktestRequest, BacktestResult, StartedRun
from controller.store.journal import adoptions
from controller.store.journal.adoptions import Adoption
from controller.store.postgres.clock import database_now
from tests.integration.store.mirrors.test_mirrors import attach
from tests.support.inspection import ask
from tests.support.store_driver import StoreDriver, backing_topic, request

DAY = 86_400_000
ASKED = BacktestRequest(
    "request-1",
    "ada",
    "pip483-6",
    {
        "policies": [{"name": "pip483"}, {"name": "wide"}],
        "loads": [{"name": "topic://t/n/x", "topic_id": 7, "start_ms": DAY, "end_ms": 3 * DAY}],
        "prices": {"excess": 20.0},
    },
)
FIGURES = {
    "segment_hours": 12.5,
    "excess_hours": 0.25,
    "overload_seconds": 60,
    "overloaded_segment_seconds": 120,
    "reshapes": 3,
    "rings_resealed": 1.5,
}
RESULT = BacktestResult("topic://t/n/x", "pip483", 0, 7, 20.0, 10.0, FIGURES)
OTHER = replace(RESULT, policy="wide", cost=15.0)


def begin(driver: StoreDriver, request: BacktestRequest = ASKED) -> StartedRun:
    with driver.store.transaction() as tx:
        return backtests.begin(tx, request)


def finish(
    driver: StoreDriver, run_id: int, *results: BacktestResult, request: BacktestRequest = ASKED
) -> None:
    with driver.store.transaction() as tx:
        backtests.finish(tx, run_id, request, "here", results)


def fail(driver: StoreDriver, run_id: int) -> None:
    with driver.store.transaction() as tx:
        backtests.fail(tx, run_id, "no history")


def run_of(driver: StoreDriver, run_id: int) -> Any:
    [row] = seen(driver, "SELECT * FROM inspect.backtest_runs WHERE run_id = :run_id", run_id=run_id)
    return row


def seen(driver: StoreDriver, statement: str, **parameters: object) -> list[Any]:
    return [SimpleNamespace(**row) for row in ask(driver, statement, **parameters)]


def test_a_run_is_seen_while_it_runs_and_with_its_results_once_it_is_done(driver: StoreDriver) -> None:
    begun = begin(driver)
    running = run_of(driver, begun.run_id)
    finish(driver, begun.run_id, RESULT, OTHER)

    assert (running.state, running.results, running.engine, running.seconds) == ("running", 0, None, None)
    done = run_of(driver, begun.run_id)
    assert (done.state, done.results, done.engine) == ("done", 2, "here")
    assert (done.policies, done.loads) == (["pip483", "wide"], ["topic://t/n/x"])
    assert (done.since.isoformat(), done.until.isoformat()) == (
        "1970-01-02T00:00:00+00:00",
        "1970-01-04T00:00:00+00:00",
    )
    rows = seen(driver, "SELECT * FROM inspect.backtest_results ORDER BY policy")
    assert [(row.policy, row.cost, row.least_cost, row.regret) for row in rows] == [
        ("pip483", 20.0, 10.0, 2.0),
        ("wide", 15.0, 10.0, 1.5),
    ]
    assert {name: getattr(rows[0], name) for name in FIGURES} == FIGURES
    assert rows[0].figures == FIGURES


def test_a_request_that_is_repeated_is_the_same_run(driver: StoreDriver) -> None:
    first = begin(driver)
    again = begin(driver, replace(ASKED, asked_by="bob"))
    finish(driver, first.run_id, RESULT)
    finish(driver, first.run_id, RESULT, OTHER)  # who was slower adds nothing

    assert again == first
    assert begin(driver) == StartedRun(first.run_id, is_done=True)
    assert run_of(driver, first.run_id).results == 1


def test_the_inputs_are_those_of_whoever_finished(driver: StoreDriver) -> None:
    """A process died, and until another took over a policy was changed."""
    run_id = begin(driver).run_id
    later = replace(ASKED, code_version="pip483-7", inputs={**ASKED.inputs, "prices": {"excess": 100.0}})

    assert begin(driver, later) == StartedRun(run_id, is_done=False)
    finish(driver, run_id, RESULT, request=later)

    done = run_of(driver, run_id)
    assert (done.code_version, done.inputs["prices"]) == ("pip483-7", {"excess": 100.0})


def test_a_run_that_failed_says_why_and_may_be_begun_again(driver: StoreDriver) -> None:
    run_id = begin(driver).run_id
    fail(driver, run_id)
    failed = run_of(driver, run_id)
    again = begin(driver)
    finish(driver, run_id, RESULT)
    fail(driver, run_id)  # who was slower changes nothing

    assert (failed.state, failed.error) == ("failed", "no history")
    assert again == StartedRun(run_id, is_done=False)
    assert (run_of(driver, run_id).state, run_of(driver, run_id).error) == ("done", None)


def test_an_attempt_that_fails_late_does_not_take_away_the_results_of_the_next(driver: StoreDriver) -> None:
    run_id = begin(driver).run_id
    begin(driver)  # the second attempt
    fail(driver, run_id)  # the first one ends

    finish(driver, run_id, RESULT)

    done = run_of(driver, run_id)
    assert (done.state, done.error, done.results) == ("done", None, 1)


def test_a_best_of_nothing_is_no_regret(driver: StoreDriver) -> None:
    run_id = begin(driver).run_id
    finish(driver, run_id, replace(RESULT, least_cost=0.0))

    [row] = seen(driver, "SELECT regret FROM inspect.backtest_results")
    assert row.regret is None


@pytest.mark.parametrize(
    ("statement", "sentence"),
    [
        ("UPDATE cleave.backtest_run SET state = 'lost'", "running, done or failed"),
        ("UPDATE cleave.backtest_run SET finished_at = now()", "has no end time"),
        ("UPDATE cleave.backtest_run SET error = 'x'", "has an error"),
        ("UPDATE cleave.backtest_run SET inputs = '{}'", "name policies, loads and prices"),
        ("UPDATE cleave.backtest_result SET cost = 1", "history"),
        (
            "INSERT INTO cleave.backtest_result SELECT run_id, 'x', 'x', 0, NULL, -1, 0, '{}' FROM cleave.backtest_run",
            "number of segment-hours",
        ),
    ],
)
def test_the_database_is_the_last_guard(driver: StoreDriver, statement: str, sentence: str) -> None:
    finish(driver, begin(driver).run_id, RESULT)
    begin(driver, replace(ASKED, request_key="request-2"))

    with pytest.raises(CleaveError, match=sentence), driver.store.transaction() as tx:
        tx.execute(text(statement))


@pytest.mark.parametrize(
    "statement",
    ["UPDATE cleave.backtest_result SET cost = 1", "TRUNCATE cleave.backtest_result"],
)
def test_the_controller_may_not_change_what_came_out(driver: StoreDriver, statement: str) -> None:
    with pytest.raises(Terminal, match="permission denied"):
        driver.sql_as_controller(statement)


def test_the_controller_may_do_the_rest(driver: StoreDriver) -> None:
    with driver.store.transaction() as tx:
        tx.execute(text("SET LOCAL ROLE cleave_controller"))
        run_id = backtests.begin(tx, ASKED).run_id
        backtests.fail(tx, run_id, "x")
        backtests.begin(tx, ASKED)
        backtests.finish(tx, run_id, ASKED, "here", [RESULT])


HOUR = timedelta(hours=1)


def segments_at_the_start(driver: StoreDriver) -> list[int]:
    """How many segments each topic begins with in a backtest of the last hour."""
    now = driver.do(database_now)
    return [subject.segments for subject in driver.do(backtests.subjects, now - HOUR, now + HOUR)]


def test_a_topic_of_the_last_hour_begins_as_it_was_created(driver: StoreDriver) -> None:
    topic_id = driver.create(segments=3).topic_id
    driver.reshape(topic_id, lambda layout: plan_split(layout, 0))

    assert segments_at_the_start(driver) == [3]


def test_an_adopted_topic_begins_with_the_segments_it_was_given(driver: StoreDriver) -> None:
    adoption = Adoption(
        name="topic://t/n/a",
        data_plane="embedded",
        old_topics=("persistent://t/n/a",),
        subscriptions={},
        segments=8,
        bucket_budget=8,
        max_buckets=64,
    )
    driver.run(
        driver.do(adoptions.intend_adopt, adoption, backing_topic=backing_topic, request=request()).operation
    )

    assert segments_at_the_start(driver) == [8]


@pytest.mark.parametrize(("segments", "began"), [(1, 2), (2, 3)])
def test_an_attached_topic_begins_as_it_was_attached(driver: StoreDriver, segments: int, began: int) -> None:
    """Its broker has split a segment in the hour, and pruned it."""
    now = driver.do(database_now)
    first = SegmentLayout.initial(segments, now=to_ms(now - 2 * HOUR))
    attach(driver, first.split(0, to_ms(now - HOUR / 2)).prune(0))

    assert segments_at_the_start(driver) == [began]
