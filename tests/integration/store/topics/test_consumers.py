"""Consumers: durable sessions, each change an input of decisions."""

from __future__ import annotations

import pytest

from controller.domain.errors import Conflict, InvalidInput, SubscriptionNotFound, TopicNotLive
from controller.store.journal import topic_intents
from controller.store.topics import consumers
from tests.support.store_driver import StoreDriver, request


def _input_version(driver: StoreDriver) -> int:
    [(version,)] = driver.sql("SELECT input_version FROM cleave.evaluation")
    return int(version)


def test_joining_and_leaving_are_inputs_and_connecting_is_not(driver: StoreDriver) -> None:
    topic_id = driver.create().topic_id
    driver.subscribe(topic_id, "s")
    before = _input_version(driver)

    assert driver.do(consumers.register, topic_id, "s", "c") is True
    assert driver.do(consumers.register, topic_id, "s", "c") is False
    assert _input_version(driver) == before + 1

    driver.do(consumers.set_connected, topic_id, "s", "c", connected=False)
    [row] = driver.do(consumers.list_consumers, topic_id)
    assert (row.name, row.connected) == ("c", False)
    driver.do(consumers.register, topic_id, "s", "c")
    assert [row.connected for row in driver.do(consumers.list_consumers, topic_id)] == [True]
    assert _input_version(driver) == before + 1

    assert driver.do(consumers.unregister, topic_id, "s", "c") is True
    assert driver.do(consumers.unregister, topic_id, "s", "c") is False
    assert _input_version(driver) == before + 2


def test_consumers_are_listed_by_subscription(driver: StoreDriver) -> None:
    topic_id = driver.create().topic_id
    for subscription, names in {"t": "a", "s": "ba"}.items():
        driver.subscribe(topic_id, subscription)
        for name in names:
            driver.do(consumers.register, topic_id, subscription, name)

    assert [(row.subscription, row.name) for row in driver.do(consumers.list_consumers, topic_id)] == [
        ("s", "a"),
        ("s", "b"),
        ("t", "a"),
    ]
    assert len(driver.do(consumers.list_consumers, topic_id, "t")) == 1


def test_who_cannot_join_is_told_why(driver: StoreDriver) -> None:
    topic_id = driver.create().topic_id
    driver.subscribe(topic_id, "s")
    with pytest.raises(SubscriptionNotFound, match="no subscription x"):
        driver.do(consumers.register, topic_id, "x", "c")
    with pytest.raises(InvalidInput, match="consumer name"):
        driver.do(consumers.register, topic_id, "s", "a b")

    driver.do(topic_intents.intend_subscription_delete, topic_id, "s", request())
    with pytest.raises(Conflict, match="being deleted"):
        driver.do(consumers.register, topic_id, "s", "c")
    driver.do(topic_intents.intend_delete, topic_id, request())
    with pytest.raises(TopicNotLive, match="is deleting"):
        driver.do(consumers.register, topic_id, "s", "c")
