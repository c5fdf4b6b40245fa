"""The ledger: what was decided can be read, replayed, and dropped by the day, never changed."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from controller.domain.decision import Evaluation, Lane, Refusal, RefusalReason, Split
from controller.domain.errors import Terminal
from controller.domain.evaluation_input import Capabilities, EvaluationInput
from controller.domain.evaluator import decide
from controller.store.decisions import decision_log
from controller.store.decisions.decision_log import EvaluationRecord
from controller.store.decisions.evaluation_inputs import load_evaluation_inputs
from tests.support.passes import decisions_of
from tests.support.plans import plans_of
from tests.support.reports import milliseconds, report_load
from tests.support.store_driver import StoreDriver

VERDICT = Evaluation(
    (Split(0, (), "msgRateIn"),),
    (Refusal(1, Lane.LOAD, RefusalReason.LOWER_SCORE, "msg_rate_in", 1.5, 2.0),),
    1_800_000_000_123,
)


def row(decision_id: int, topic_id: int, decided_at: datetime | None = None) -> EvaluationRecord:
    """A row that differs from others in what is asked only."""
    return EvaluationRecord(
        decision_id,
        topic_id,
        milliseconds(decided_at or datetime.now(UTC)),
        3,
        7,
        {Lane.MERGE, Lane.LOAD},
        "tests",
        "code-1",
        VERDICT,
        '{"now":1}',
    )


def record(driver: StoreDriver, *rows: EvaluationRecord) -> None:
    """Writes rows, giving each the next id where it has none."""
    with driver.store.transaction() as tx:
        ids = decision_log.reserve_ids(tx, len(rows))
        decision_log.record(
            tx, [replace(one, decision_id=number) for one, number in zip(rows, ids, strict=True)]
        )


def partitions(driver: StoreDriver) -> list[str]:
    """Tables the ledger consists of."""
    found = driver.sql(
        "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'cleave.decision'::regclass ORDER BY 1"
    )
    return [str(name).removeprefix("cleave.") for (name,) in found]


def test_a_row_is_read_as_it_was_written(driver: StoreDriver) -> None:
    written = row(0, 1)
    record(driver, written)

    [read] = driver.do(decisions_of, 1)

    document = json.loads(VERDICT.to_json())
    assert (read.decisions, read.refusals) == (document["decisions"], document["refusals"])
    assert milliseconds(read.decided_at) == written.decided_at
    assert read.valid_until is not None
    assert milliseconds(read.valid_until) == VERDICT.valid_until
    assert (read.epoch, read.input_version, read.lanes) == (3, 7, [Lane.LOAD, Lane.MERGE])
    assert (read.decided_by, read.code_version, read.situation) == ("tests", "code-1", '{"now":1}')


def test_a_decision_is_replayed_from_its_row_bit_for_bit(driver: StoreDriver) -> None:
    topic_id = driver.create(segments=2).topic_id
    driver.do(report_load, topic_id, {0: 25_000.25, 1: 1.5})
    with driver.store.transaction() as tx:
        situation = load_evaluation_inputs(tx, [topic_id], {"embedded": Capabilities()})[topic_id]
        verdict = decide(situation)
        [decision_id] = decision_log.reserve_ids(tx, 1)
        written = replace(row(decision_id, topic_id), evaluation=verdict, situation=situation.to_json())
        decision_log.record(tx, [written])

    [read] = driver.do(decisions_of, topic_id)

    assert verdict.decisions
    replayed = decide(EvaluationInput.from_json(read.situation))
    assert replayed == verdict
    assert json.loads(replayed.to_json())["decisions"] == read.decisions


def test_a_hundred_rows_are_one_statement(driver: StoreDriver) -> None:
    with driver.store.transaction() as tx:
        ids = decision_log.reserve_ids(tx, 100)
        plans = plans_of(tx, lambda: decision_log.record(tx, [row(number, 1) for number in ids]))

    assert len(plans) == 1
    assert len(set(ids)) == 100


def test_days_are_made_ahead_once_and_take_the_rows_that_came_before_them(driver: StoreDriver) -> None:
    today = datetime.now(UTC)
    record(
        driver, row(0, 1, today), row(0, 1, today + timedelta(days=1)), row(0, 1, today - timedelta(days=40))
    )

    made = driver.do(decision_log.ensure_partitions, 1)

    assert made == [f"decision_{day:%Y%m%d}" for day in (today, today + timedelta(days=1))]
    assert driver.do(decision_log.ensure_partitions, 1) == []
    assert partitions(driver) == [*made, "decision_default"]
    where = "SELECT tableoid::regclass::text FROM cleave.decision ORDER BY decided_at"
    assert [str(name) for (name,) in driver.sql(where)] == [
        "cleave.decision_default",
        *(f"cleave.{one}" for one in made),
    ]
    assert len(driver.do(decisions_of, 1)) == 3


def test_days_that_ended_are_dropped_whole_and_no_other_row_goes(driver: StoreDriver) -> None:
    today = datetime.now(UTC)
    driver.do(decision_log.ensure_partitions, 2)
    record(
        driver, row(0, 1, today), row(0, 1, today + timedelta(days=1)), row(0, 1, today - timedelta(days=40))
    )

    assert driver.do(decision_log.drop_partitions, today - timedelta(days=39)) == []
    assert len(driver.do(decisions_of, 1)) == 2

    _made_of(driver, today - timedelta(days=40))
    month_ago = today - timedelta(days=31)

    in_the_course_of_the_day = today - timedelta(days=40)
    assert driver.do(decision_log.drop_partitions, in_the_course_of_the_day) == []
    assert driver.do(decision_log.drop_partitions, month_ago) == [
        f"decision_{today - timedelta(days=40):%Y%m%d}"
    ]
    assert len(driver.do(decisions_of, 1)) == 2


@pytest.mark.parametrize("change", ["UPDATE cleave.decision SET epoch = 0", "DELETE FROM cleave.decision"])
def test_the_controllers_role_writes_rows_and_keeps_days_but_changes_nothing(
    driver: StoreDriver, change: str
) -> None:
    with driver.store.transaction() as tx:
        tx.execute(text("SET LOCAL ROLE cleave_controller"))
        decision_log.ensure_partitions(tx, 1)
        decision_log.record(tx, [row(number, 1) for number in decision_log.reserve_ids(tx, 2)])
        decision_log.drop_partitions(tx, datetime.now(UTC) - timedelta(days=30))

    with pytest.raises(Terminal, match="permission denied"):
        driver.sql_as_controller(change)


def test_a_topics_decisions_are_found_by_index(driver: StoreDriver) -> None:
    driver.do(decision_log.ensure_partitions, 1)
    with driver.store.transaction() as tx:
        decision_log.record(tx, [row(number, number % 500) for number in decision_log.reserve_ids(tx, 2000)])
        tx.execute(text("ANALYZE cleave.decision"))
        [plan] = plans_of(tx, lambda: decisions_of(tx, 7))

    assert f"Seq Scan on decision_{datetime.now(UTC):%Y%m%d}" not in plan
    assert "topic_id_decision_id_idx" in plan


@pytest.mark.parametrize("instant", [timedelta(days=3650), timedelta(0), timedelta(days=-29)])
def test_no_day_of_the_last_thirty_goes_whatever_is_asked_for(
    driver: StoreDriver, instant: timedelta
) -> None:
    today = datetime.now(UTC)
    driver.do(decision_log.ensure_partitions, 1)
    for days in (29, 31):
        _made_of(driver, today - timedelta(days=days))
    record(
        driver, row(0, 1, today), row(0, 1, today - timedelta(days=28)), row(0, 1, today - timedelta(days=35))
    )

    with driver.store.transaction() as tx:
        tx.execute(text("SET LOCAL ROLE cleave_controller"))
        dropped = decision_log.drop_partitions(tx, today + instant)

    assert dropped == [f"decision_{today - timedelta(days=31):%Y%m%d}"]
    assert len(driver.do(decisions_of, 1)) == 2


def _made_of(driver: StoreDriver, day: datetime) -> None:
    """The table of a day gone by."""
    begin = day.replace(hour=0, minute=0, second=0, microsecond=0)
    driver.sql(
        f"CREATE TABLE cleave.decision_{day:%Y%m%d} PARTITION OF cleave.decision "
        f"FOR VALUES FROM ('{begin.isoformat()}') TO ('{(begin + timedelta(days=1)).isoformat()}')"
    )


@pytest.mark.parametrize(
    "change", ["UPDATE cleave.decision_default SET epoch = 0", "DELETE FROM cleave.decision_default"]
)
def test_nor_does_the_controllers_role_change_days_that_have_no_table(
    driver: StoreDriver, change: str
) -> None:
    with pytest.raises(Terminal, match="permission denied"):
        driver.sql_as_controller(change)
