"""Topic rows: found by name, paged, changed only by row version."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from controller.domain.errors import InvariantViolated, LostRace, TopicNotFound, TopicNotLive
from controller.store.topics import topics
from controller.store.topics.topics import TopicState
from tests.support.store_driver import StoreDriver


def test_a_topic_is_found_by_name_until_it_is_deleted_and_by_id_for_ever(driver: StoreDriver) -> None:
    created = driver.create("topic://t/n/a")

    assert driver.do(topics.find_topic, "topic://t/n/a") == created
    assert created.state is TopicState.LIVE

    driver.delete(created.topic_id)

    with pytest.raises(TopicNotFound, match="topic://t/n/a does not exist"):
        driver.do(topics.find_topic, "topic://t/n/a")
    assert driver.do(topics.get_topic, created.topic_id).state is TopicState.DELETED


def test_unknown_ids_are_refused_by_sentence(driver: StoreDriver) -> None:
    with pytest.raises(TopicNotFound, match="topic 404 does not exist"):
        driver.do(topics.get_topic, 404, lock=True)


def test_a_change_demands_the_row_version_it_was_read_at(driver: StoreDriver) -> None:
    seen = driver.create()
    driver.do(topics.update_topic, seen, properties={"owner": "x"})

    with pytest.raises(LostRace, match="row version"):
        driver.do(topics.update_topic, seen, properties={"owner": "y"})

    after = driver.do(topics.get_topic, seen.topic_id)
    assert after.properties == {"owner": "x"}
    assert after.row_version == seen.row_version + 1


def test_the_database_refuses_a_change_that_does_not_raise_the_row_version(driver: StoreDriver) -> None:
    topic = driver.create()

    with pytest.raises(InvariantViolated, match="raises row_version by 1"):
        driver.sql("UPDATE cleave.topic SET properties = '{}' WHERE topic_id = :id", id=topic.topic_id)


def test_only_a_live_topic_takes_requests(driver: StoreDriver) -> None:
    creating = driver.intend_create("topic://t/n/a").operation

    with pytest.raises(TopicNotLive, match="is creating"):
        driver.do(topics.lock_live_topic, creating.topic_id)


def test_rows_that_refer_to_a_locked_topic_can_still_be_written(driver: StoreDriver) -> None:
    """The lock is FOR NO KEY UPDATE: foreign keys are checked beside it."""
    topic = driver.create()
    with driver.store.transaction() as tx, driver.store.transaction() as other:
        topics.get_topic(tx, topic.topic_id, lock=True)
        other.execute(text("SET LOCAL lock_timeout = '1s'"))
        inserted = other.execute(
            text("INSERT INTO cleave.subscription (topic_id, name, created_epoch) VALUES (:id, 's', 0)"),
            {"id": topic.topic_id},
        )

        assert inserted.rowcount == 1
