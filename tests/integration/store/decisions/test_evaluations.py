"""Work to do: what is drained, what stays, and when to look again."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from benchmarks.fleet import analyze, insert_fleet
from controller.domain.decision import Lane
from controller.domain.reshape import plan_split
from controller.store.decisions import evaluations
from controller.store.decisions.evaluations import FinishedEvaluation, PendingEvaluation
from controller.store.postgres.engine import Store
from controller.store.shards import Shards
from tests.support.plans import plans_of
from tests.support.reports import milliseconds, report_load
from tests.support.store_driver import StoreDriver

ALL = frozenset(Lane)


def drained(
    driver: StoreDriver, lanes: frozenset[Lane] = ALL, limit: int = 10, **options: object
) -> list[int]:
    """Ids of what a drain hands out, in a transaction of its own."""
    return [p.topic_id for p in driver.do(evaluations.lock_due, lanes=lanes, limit=limit, **options)]


def finish(
    driver: StoreDriver,
    topic_id: int,
    lanes: frozenset[Lane] = ALL,
    valid_until: int | None = None,
    digest: str | None = None,
) -> None:
    """Drains the topic and marks it as evaluated."""
    [pending] = driver.do(evaluations.read, [topic_id])
    done = FinishedEvaluation(topic_id, pending.input_version, valid_until, digest)
    driver.do(evaluations.finish, lanes, [done])


def test_a_topic_is_owed_an_evaluation_from_its_creation_until_one_is_finished(driver: StoreDriver) -> None:
    topic_id = driver.create().topic_id

    assert drained(driver) == [topic_id]

    finish(driver, topic_id, digest="load=ab")

    assert drained(driver) == []
    [row] = driver.do(evaluations.read, [topic_id])
    assert (row.not_before, row.outcome_digest) == (None, "load=ab")


def test_each_lane_has_its_own_memory(driver: StoreDriver) -> None:
    topic_id = driver.create().topic_id

    finish(driver, topic_id, lanes=frozenset({Lane.LOAD}))

    assert drained(driver, frozenset({Lane.LOAD})) == []
    assert drained(driver, frozenset({Lane.MERGE})) == [topic_id]
    assert drained(driver, frozenset({Lane.LOAD, Lane.CONSUMER})) == [topic_id]


@pytest.mark.parametrize(
    "what", ["load", "consumer", "layout", "topic policy", "namespace policy", "cluster policy"]
)
def test_whatever_could_change_an_answer_makes_the_topic_dirty(driver: StoreDriver, what: str) -> None:
    topic_id = driver.create(subscriptions=["billing"]).topic_id
    finish(driver, topic_id)
    changes: dict[str, Callable[[], object]] = {
        "load": lambda: driver.do(report_load, topic_id, {0: 10.0}),
        "consumer": lambda: driver.sql(
            "INSERT INTO cleave.consumer (topic_id, subscription, name) VALUES (:id, 'billing', 'c')",
            id=topic_id,
        ),
        "layout": lambda: driver.split(topic_id, 0),
        "topic policy": lambda: driver.sql(
            "UPDATE cleave.topic SET policy = '{}', row_version = row_version + 1 WHERE topic_id = :id",
            id=topic_id,
        ),
        "namespace policy": lambda: driver.sql(
            "INSERT INTO cleave.namespace_policy (namespace, policy, actor) VALUES ('t/n', '{}', 'x')"
        ),
        "cluster policy": lambda: driver.sql("UPDATE cleave.cluster_policy SET actor = 'x'"),
    }

    changes[what]()

    assert drained(driver) == [topic_id]


def test_input_raised_during_an_evaluation_is_not_forgotten_by_its_end(driver: StoreDriver) -> None:
    topic_id = driver.create().topic_id
    [seen] = driver.do(evaluations.lock_due, lanes=ALL, limit=1)
    driver.split(topic_id, 0)

    driver.do(evaluations.finish, ALL, [FinishedEvaluation(topic_id, seen.input_version, None, None)])

    assert drained(driver) == [topic_id]


def test_an_older_evaluation_does_not_undo_a_newer_one(driver: StoreDriver) -> None:
    topic_id = driver.create().topic_id
    [seen] = driver.do(evaluations.lock_due, lanes=ALL, limit=1)
    driver.split(topic_id, 0)
    finish(driver, topic_id)

    driver.do(evaluations.finish, ALL, [FinishedEvaluation(topic_id, seen.input_version, None, None)])

    assert drained(driver) == []


def test_an_answer_that_stops_being_valid_is_due_again_and_told_beforehand(driver: StoreDriver) -> None:
    topic_id = driver.create().topic_id
    soon = datetime.now(UTC) + timedelta(hours=1)
    finish(driver, topic_id, valid_until=milliseconds(soon))

    assert drained(driver) == []
    due = driver.do(evaluations.next_due, ALL)
    assert due is not None
    assert milliseconds(due) == milliseconds(soon)

    finish(driver, topic_id, valid_until=milliseconds(datetime.now(UTC)) - 1)

    assert drained(driver) == [topic_id]


def test_a_pause_holds_back_even_what_is_dirty_and_is_never_shortened(driver: StoreDriver) -> None:
    topic_id = driver.create().topic_id
    driver.do(evaluations.defer, [topic_id], 3600.0)
    driver.do(evaluations.defer, [topic_id], 1.0)

    assert drained(driver) == []
    [row] = driver.do(evaluations.read, [topic_id])
    assert row.not_before == driver.do(evaluations.next_due, ALL)
    assert row.not_before > datetime.now(UTC) + timedelta(minutes=59)


@pytest.mark.parametrize("seconds", [-1, 5])
def test_what_is_due_by_time_before_its_pause_is_over_is_told_for_the_end_of_the_pause(
    driver: StoreDriver, seconds: int
) -> None:
    """A worker that sleeps until then would otherwise not look before its next sweep."""
    topic_id = driver.create().topic_id
    finish(driver, topic_id, valid_until=milliseconds(datetime.now(UTC) + timedelta(seconds=seconds)))
    driver.do(evaluations.defer, [topic_id], 3600.0)

    [row] = driver.do(evaluations.read, [topic_id])
    assert driver.do(evaluations.next_due, ALL) == row.not_before


def test_nothing_is_due_when_everything_is_answered_for_good(driver: StoreDriver) -> None:
    topic_id = driver.create().topic_id
    finish(driver, topic_id)

    assert driver.do(evaluations.next_due, ALL) is None
    assert driver.do(evaluations.next_due, frozenset()) is None


def test_dirty_work_is_due_now_by_the_databases_clock(driver: StoreDriver) -> None:
    driver.create()
    with driver.store.transaction() as tx:
        due = evaluations.next_due(tx, {Lane.LOAD})
        now = tx.execute(text("SELECT clock_timestamp()")).scalar_one()

    assert due is not None
    assert due <= now


def test_drainers_side_by_side_never_get_the_same_topic(driver: StoreDriver, database: str) -> None:
    first, second = (driver.create(f"topic://t/n/{name}").topic_id for name in "ab")
    other = Store(database)
    try:
        with driver.store.transaction() as one, other.transaction() as two:
            two.execute(text("SET LOCAL lock_timeout = '2s'"))
            mine = evaluations.lock_due(one, lanes=ALL, limit=1)
            theirs = evaluations.lock_due(two, lanes=ALL, limit=5)

            assert [p.topic_id for p in mine] == [first]
            assert [p.topic_id for p in theirs] == [second]
    finally:
        other.dispose()


def test_shards_named_topics_and_topics_to_skip_bound_a_drain(driver: StoreDriver) -> None:
    ids = [driver.create(f"topic://t/n/{name}").topic_id for name in "abcd"]
    even, odd = (Shards.of(2, [shard]) for shard in (0, 1))

    assert drained(driver, shards=even) == [i for i in ids if i % 2 == 0]
    assert drained(driver, shards=odd) == [i for i in ids if i % 2 == 1]
    assert drained(driver, topic_ids=ids[1:3]) == ids[1:3]
    assert drained(driver, topic_ids=[]) == []
    assert drained(driver, skip=ids[:3]) == ids[3:]
    assert drained(driver, limit=2) == ids[:2]
    with driver.store.transaction() as tx:
        assert evaluations.next_due(tx, ALL, Shards.of(2, [])) is None


def test_an_aborted_operation_raises_the_topic_and_pauses_it(driver: StoreDriver) -> None:
    topic_id = driver.create().topic_id
    finish(driver, topic_id)
    operation = driver.intend(topic_id, lambda layout: plan_split(layout, 0))
    driver.sql(
        "UPDATE cleave.operation SET deadline = clock_timestamp() WHERE operation_id = :id",
        id=operation.operation_id,
    )

    driver.run(operation)

    [row] = driver.do(evaluations.read, [topic_id])
    assert row.not_before is not None
    assert drained(driver) == []
    driver.sql("UPDATE cleave.evaluation SET not_before = '-infinity'")
    assert drained(driver) == [topic_id]


def test_finishing_and_draining_a_batch_is_a_fixed_number_of_statements_on_indexes(
    driver: StoreDriver,
) -> None:
    with driver.store.transaction() as tx:
        insert_fleet(tx, 5000, 1)
        everything = evaluations.lock_due(tx, lanes=ALL, limit=5000)
        evaluations.finish(
            tx, ALL, [FinishedEvaluation(p.topic_id, p.input_version, None, None) for p in everything]
        )
        tx.execute(
            text("UPDATE cleave.evaluation SET input_version = input_version + 1 WHERE topic_id % 500 = 0")
        )
    with driver.store.transaction() as tx:
        analyze(tx)
    with driver.store.transaction() as tx:
        dirty = list[PendingEvaluation]()
        drain_plans = plans_of(
            tx, lambda: dirty.extend(evaluations.lock_due(tx, lanes={Lane.LOAD}, limit=100))
        )
        named = [topic.topic_id for topic in dirty[:3]]
        named_plans = plans_of(
            tx, lambda: evaluations.lock_due(tx, lanes={Lane.LOAD}, limit=100, topic_ids=named)
        )
        finish_plans = plans_of(
            tx,
            lambda: evaluations.finish(
                tx, ALL, [FinishedEvaluation(p.topic_id, p.input_version, None, None) for p in dirty]
            ),
        )
        due_plans = plans_of(tx, lambda: evaluations.next_due(tx, {Lane.LOAD}))

    assert len(dirty) == 10
    assert ["evaluation_load_dirty" in plan for plan in drain_plans] == [True, False]
    assert "evaluation_load_due" in drain_plans[1]
    [named_plan] = named_plans
    assert "evaluation_pkey" in named_plan
    [finish_plan] = finish_plans
    assert "evaluation_pkey" in finish_plan
    [due_plan] = due_plans
    assert "evaluation_load_dirty" in due_plan
    assert "evaluation_paused" in due_plan
    assert "evaluation_load_due" in due_plan
    assert not [
        plan
        for plan in (*drain_plans, *named_plans, *finish_plans, *due_plans)
        if "Seq Scan on evaluation" in plan
    ]
