"""Subscriptions as recorded."""

from __future__ import annotations

import pytest

from controller.domain.errors import InvalidInput, SubscriptionNotFound
from controller.store.topics import subscriptions
from controller.store.topics.subscriptions import SubscriptionKind, SubscriptionState
from tests.support.store_driver import StoreDriver


def test_subscriptions_are_listed_by_name_with_their_first_epoch(driver: StoreDriver) -> None:
    topic_id = driver.create().topic_id
    driver.subscribe(topic_id, "b", SubscriptionKind.QUEUE)
    driver.split(topic_id, 0)
    driver.subscribe(topic_id, "a", from_latest=True)

    rows = driver.do(subscriptions.list_subscriptions, topic_id)

    assert [(row.name, row.kind, row.state, row.created_epoch) for row in rows] == [
        ("a", SubscriptionKind.STREAM, SubscriptionState.LIVE, 1),
        ("b", SubscriptionKind.QUEUE, SubscriptionState.LIVE, 0),
    ]
    assert driver.do(subscriptions.get_subscription, topic_id, "a") == rows[0]


def test_an_unknown_subscription_is_named(driver: StoreDriver) -> None:
    topic_id = driver.create().topic_id

    with pytest.raises(SubscriptionNotFound, match="topic topic://t/n/a has no subscription x"):
        driver.do(subscriptions.get_subscription, topic_id, "x")


@pytest.mark.parametrize(
    ("name", "advice"),
    [("", "give it a name"), (" ", "use printable characters"), ("a b", "use printable characters")],
)
def test_a_name_that_is_empty_or_has_spaces_is_refused(driver: StoreDriver, name: str, advice: str) -> None:
    topic_id = driver.create().topic_id

    with pytest.raises(InvalidInput, match=advice):
        driver.subscribe(topic_id, name)
