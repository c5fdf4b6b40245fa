"""Drains: marks of the clients that read, and segments that were none of a subscription's business."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Connection

from controller.domain.errors import Conflict, SubscriptionNotFound
from controller.store.journal import subscription_intents, topic_intents
from controller.store.topics import drains, topics
from tests.support.store_driver import SOMEBODY_WAITS, StoreDriver, request
from tests.support.waiting import wait_until

NOT_DRAINED = (
    "SELECT segment_id FROM cleave.segment WHERE state = 'SEALED' AND drained_at IS NULL ORDER BY segment_id"
)
"""Sealed segments that readers look at."""


def test_segments_sealed_before_a_subscription_from_latest_count_as_drained(driver: StoreDriver) -> None:
    topic_id = driver.create(subscriptions=["early"], splits=[0]).topic_id
    driver.subscribe(topic_id, "late", from_latest=True)
    driver.split(topic_id, 1)

    assert driver.do(drains.drained, topic_id, "early") == set()
    assert driver.do(drains.drained, topic_id, "late") == {0}
    assert driver.do(drains.undrained_subscriptions, topic_id, [0, 1, 2]) == {
        0: ["early"],
        1: ["early", "late"],
        2: ["early", "late"],
    }


def test_marks_are_set_twice_and_taken_back(driver: StoreDriver) -> None:
    topic_id = driver.create(subscriptions=["s"], splits=[0]).topic_id
    driver.do(drains.mark_drained, topic_id, "s", [0])
    driver.do(drains.mark_drained, topic_id, "s", [0])
    assert driver.do(drains.drained, topic_id, "s") == {0}

    driver.do(drains.undrain, topic_id, "s", [0])
    assert driver.do(drains.drained, topic_id, "s") == set()


@pytest.mark.parametrize("act", [drains.mark_drained, drains.undrain])
def test_marks_wait_for_whoever_holds_the_topic(
    driver: StoreDriver, act: Callable[[Connection, int, str, list[int]], None]
) -> None:
    """What is found drained while pruning stays so until the prune is committed."""
    topic_id = driver.create(subscriptions=["s"], splits=[0]).topic_id
    with ThreadPoolExecutor(1) as pool:
        with driver.store.transaction() as tx:
            topics.get_topic(tx, topic_id, lock=True)
            marking = pool.submit(driver.do, act, topic_id, "s", [0])
            wait_until(lambda: marking.done() or driver.sql(SOMEBODY_WAITS), message="it waits")
            assert not marking.done()
        marking.result()


def test_an_active_or_unknown_segment_is_never_drained(driver: StoreDriver) -> None:
    topic_id = driver.create(subscriptions=["s"]).topic_id

    for segment_id in (0, 404):
        with pytest.raises(Conflict, match=f"segment {segment_id} .* not sealed"):
            driver.do(drains.mark_drained, topic_id, "s", [segment_id])
    with pytest.raises(SubscriptionNotFound):
        driver.do(drains.mark_drained, topic_id, "x", [])


def test_what_is_pruned_is_marked_no_more(driver: StoreDriver) -> None:
    """What a consumer says of it may come late, and nobody would ever take that mark away."""
    topic_id = driver.create(subscriptions=["s"], splits=[0]).topic_id
    driver.do(drains.mark_drained, topic_id, "s", [0])
    driver.run(driver.do(topic_intents.intend_prune, topic_id, [0], request()).operation)
    driver.do(drains.undrain, topic_id, "s", [0])

    driver.do(drains.mark_drained, topic_id, "s", [0])

    assert driver.sql("SELECT count(*) FROM cleave.segment_drain") == [(0,)]


def test_a_mark_of_one_subscription_says_nothing_of_another(driver: StoreDriver) -> None:
    topic_id = driver.create().topic_id
    for name in ("fast", "slow"):
        driver.subscribe(topic_id, name)
    driver.split(topic_id, 0)
    driver.do(drains.mark_drained, topic_id, "fast", [0])

    assert driver.do(drains.drained, topic_id, "fast") == {0}
    assert driver.do(drains.drained, topic_id, "slow") == set()
    assert driver.do(drains.undrained_subscriptions, topic_id, [0]) == {0: ["slow"]}


def test_the_deletion_of_the_last_subscription_that_had_not_read_a_segment_leaves_it_drained(
    driver: StoreDriver,
) -> None:
    topic_id = driver.create().topic_id
    for name in ("fast", "slow", "idle"):
        driver.subscribe(topic_id, name)
    for parent in (0, 1):
        driver.split(topic_id, parent)
    driver.do(drains.mark_drained, topic_id, "fast", [0, 1])
    driver.do(drains.mark_drained, topic_id, "slow", [1])

    delete_subscription(driver, topic_id, "idle")
    assert driver.sql(NOT_DRAINED) == [(0,)]  # `slow` has not read it

    delete_subscription(driver, topic_id, "slow")
    assert driver.sql(NOT_DRAINED) == []


def test_a_deletion_that_is_given_up_leaves_segments_drained_that_its_subscription_had_read(
    driver: StoreDriver,
) -> None:
    """No further row of `segment_drain` would set `drained_at` again."""
    topic_id = driver.create(subscriptions=["audit"], splits=[0]).topic_id
    driver.do(drains.mark_drained, topic_id, "audit", [0])
    assert driver.sql(NOT_DRAINED) == []

    deletion = driver.do(subscription_intents.intend_subscription_delete, topic_id, "audit", request())
    driver.give_up(deletion.operation)

    assert driver.sql("SELECT state FROM cleave.subscription") == [("live",)]
    assert driver.sql(NOT_DRAINED) == []


def delete_subscription(driver: StoreDriver, topic_id: int, name: str) -> None:
    """Delete the subscription and finish the operation."""
    driver.run(
        driver.do(subscription_intents.intend_subscription_delete, topic_id, name, request()).operation
    )
