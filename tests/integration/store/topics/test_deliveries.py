"""Deliveries of a bucket: what is remembered of messages in trouble, and no more than that."""

from __future__ import annotations

import msgspec
import pytest

from controller.domain.delivery_events import DeliveryEvent
from controller.store.topics import consumers, deliveries
from controller.store.topics.bucket_owners import SubscriptionKey
from controller.store.topics.deliveries import LONGEST_ERROR, MOST_TROUBLED, Ownership
from tests.support.store_driver import StoreDriver

LIFE = "its first life"
LARGEST_ANSWER_BYTES = 400_000


@pytest.fixture
def owner(driver: StoreDriver) -> Ownership:
    """The owner of the only bucket of a subscription."""
    topic_id = driver.create(subscriptions=["s"]).topic_id
    driver.do(consumers.register_session, topic_id, "s", "c", LIFE)
    driver.sql(
        "INSERT INTO cleave.bucket_owner (topic_id, subscription, segment_id, bucket_start, bucket_end, consumer, generation)"
        " VALUES (:topic_id, 's', 0, 0, 65535, 'c', 1)",
        topic_id=topic_id,
    )
    return Ownership(SubscriptionKey(topic_id, "s"), "c", LIFE, 0, 0, 1)


def note(
    driver: StoreDriver, owner: Ownership, at: int, event: DeliveryEvent, error: str | None = None
) -> None:
    driver.do(deliveries.note, owner, [at], event, 1, error)


def fill(driver: StoreDriver, owner: Ownership, count: int, error: str = "E") -> None:
    """So many messages failed, one after the other."""
    driver.sql(
        "SELECT cleave.note_delivery(:topic_id, 's', 0, 0, 'c', :life, 1, ARRAY[n::bigint], 'failed', 1, :error)"
        " FROM generate_series(1000, 999 + :count) AS n",
        topic_id=owner.key.topic_id,
        life=LIFE,
        count=count,
        error=error,
    )


def known(driver: StoreDriver, owner: Ownership) -> list[int]:
    _, found = driver.do(deliveries.open_bucket, owner, [0])
    return [one.position[0] for one in found]


def test_a_bucket_remembers_a_thousand_messages_and_the_answer_is_as_short_as_that(
    driver: StoreDriver, owner: Ownership
) -> None:
    fill(driver, owner, MOST_TROUBLED + 150, "é" * 1000)

    _, found = driver.do(deliveries.open_bucket, owner, [0])

    assert driver.sql("SELECT count(*) FROM cleave.message_delivery") == [(MOST_TROUBLED,)]
    assert [one.position[0] for one in found] == list(range(1150, 2150)), "those that were noted last"
    assert {len(one.error or "") for one in found} == {LONGEST_ERROR}
    document = [{"position": [2**62] * 2, "deliveries": 1, "deaths": 1, "error": "E" * LONGEST_ERROR}] * len(
        found
    )
    assert len(msgspec.json.encode(document)) < LARGEST_ANSWER_BYTES


def test_what_is_being_handled_and_what_ended_a_process_go_last(
    driver: StoreDriver, owner: Ownership
) -> None:
    note(driver, owner, 1, DeliveryEvent.FAILED)
    note(driver, owner, 2, DeliveryEvent.BEGUN)
    driver.sql("UPDATE cleave.message_delivery SET deaths = 1 WHERE position = ARRAY[1::bigint]")
    note(driver, owner, 3, DeliveryEvent.FAILED)

    fill(driver, owner, MOST_TROUBLED)

    found = known(driver, owner)
    assert found[:2] == [1, 2]
    assert 3 not in found
    assert len(found) == MOST_TROUBLED


def test_the_bound_is_each_buckets_own_and_what_ends_makes_room(
    driver: StoreDriver, owner: Ownership
) -> None:
    fill(driver, owner, MOST_TROUBLED)
    note(driver, owner, 1500, DeliveryEvent.ENDED)
    note(driver, owner, 9999, DeliveryEvent.FAILED)

    found = known(driver, owner)
    assert (found[0], found[-1], len(found)) == (1000, 9999, MOST_TROUBLED)
