"""Consumers: durable sessions, each change an input of decisions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pytest

from controller.domain.errors import (
    Conflict,
    InvalidInput,
    SubscriptionNotFound,
    TopicNotFound,
    TopicNotLive,
)
from controller.store.journal import subscription_intents, topic_intents
from controller.store.shards import Shards
from controller.store.topics import consumers
from tests.support.store_driver import StoreDriver, request

Register = Callable[[int, str, str], object]


@pytest.fixture(params=["command line", "session"])
def register(driver: StoreDriver, request: pytest.FixtureRequest) -> Register:
    """Registers as the command line does, or as a leader does for a session."""
    if request.param == "command line":
        return partial(driver.do, consumers.register)
    return lambda *consumer: driver.do(consumers.register_session, *consumer, "its first life")


def test_joining_and_leaving_are_inputs_and_joining_again_is_not(driver: StoreDriver) -> None:
    topic_id = driver.create(subscriptions=["s"]).topic_id
    before = driver.input_version()

    assert driver.do(consumers.register, topic_id, "s", "c") is True
    assert driver.do(consumers.register, topic_id, "s", "c") is False
    assert driver.input_version() == before + 1

    assert [row.name for row in driver.do(consumers.list_consumers, topic_id)] == ["c"]

    assert driver.do(consumers.unregister, topic_id, "s", "c") is True
    assert driver.do(consumers.unregister, topic_id, "s", "c") is False
    assert driver.input_version() == before + 2


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


def test_consumers_of_other_shards_are_left_out(driver: StoreDriver) -> None:
    topic_id = driver.create(subscriptions=["s"]).topic_id
    driver.do(consumers.register, topic_id, "s", "c")

    for shard, names in ((topic_id % 2, ["c"]), (1 - topic_id % 2, [])):
        assert [row.name for row in driver.do(consumers.of_shards, Shards.of(2, [shard]))] == names


def test_who_cannot_join_is_told_why(driver: StoreDriver, register: Register) -> None:
    topic_id = driver.create(subscriptions=["s"]).topic_id
    with pytest.raises(TopicNotFound, match="does not exist"):
        register(topic_id + 1, "s", "c")
    with pytest.raises(SubscriptionNotFound, match="no subscription x"):
        register(topic_id, "x", "c")

    driver.do(subscription_intents.intend_subscription_delete, topic_id, "s", request())
    with pytest.raises(Conflict, match="being deleted"):
        register(topic_id, "s", "c")
    driver.do(topic_intents.intend_delete, topic_id, request())
    with pytest.raises(TopicNotLive, match="is deleting"):
        register(topic_id, "s", "c")
    assert not driver.do(consumers.list_consumers, topic_id)


def test_no_session_begins_with_what_is_being_deleted(driver: StoreDriver) -> None:
    """Nor is a row left by a leader that goes on with others' requests in the same transaction."""
    topic_id = driver.create(subscriptions=["s"]).topic_id
    driver.do(topic_intents.intend_delete, topic_id, request())

    with driver.store.transaction() as tx, suppress(TopicNotLive):
        consumers.register_session(tx, topic_id, "s", "c", "its first life")

    assert not driver.do(consumers.list_consumers, topic_id)


def test_a_name_with_spaces_is_refused(driver: StoreDriver) -> None:
    topic_id = driver.create(subscriptions=["s"]).topic_id
    with pytest.raises(InvalidInput, match=r"consumer 'a b' .* use printable characters"):
        driver.do(consumers.register, topic_id, "s", "a b")


def test_only_so_many_departed_lives_are_remembered_the_newest_ones(
    driver: StoreDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "MOST_DEPARTED", 3)
    topic_id = driver.create().topic_id
    for subscription in "st":
        driver.subscribe(topic_id, subscription)
        for life in range(5):
            driver.do(consumers.depart, topic_id, subscription, f"c{life}", "never was")

    assert driver.sql("SELECT subscription, name FROM cleave.departed_consumer ORDER BY 1, 2") == [
        (subscription, name) for subscription in "st" for name in ("c2", "c3", "c4")
    ]
