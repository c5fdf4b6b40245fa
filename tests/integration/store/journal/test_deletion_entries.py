"""Tombstones: each log queued once, and closed only after two absences far enough apart."""

from __future__ import annotations

import pytest

from controller.domain.errors import NotFound
from controller.store.journal import deletion_entries
from controller.store.journal.deletion_entries import DeletionEntry
from controller.store.topics import held_topics
from tests.support.store_driver import StoreDriver


@pytest.fixture
def topic_id(driver: StoreDriver) -> int:
    return driver.create().topic_id


def _add(driver: StoreDriver, topic_id: int, *logs: str) -> int:
    return driver.do(
        deletion_entries.add,
        data_plane="embedded",
        topic_id=topic_id,
        backing_topics=dict(enumerate(logs)),
        reason="test",
    )


def _due(driver: StoreDriver, *, hold_seconds: float = 60.0) -> list[DeletionEntry]:
    return driver.do(deletion_entries.claim_due, limit=10, hold_seconds=hold_seconds)


def test_a_log_is_queued_once_while_it_waits(driver: StoreDriver, topic_id: int) -> None:
    assert _add(driver, topic_id, "a", "b") == 2
    assert _add(driver, topic_id, "b", "c") == 1

    rows = driver.do(deletion_entries.list_open, topic_id)
    assert [(row.backing_topic, row.segment_id, row.reason) for row in rows] == [
        ("a", 0, "test"),
        ("b", 1, "test"),
        ("c", 1, "test"),
    ]
    assert driver.do(deletion_entries.list_open, topic_id + 1) == []


def test_what_is_claimed_is_held_and_comes_back(driver: StoreDriver, topic_id: int) -> None:
    """A worker that dies with it does not keep it."""
    _add(driver, topic_id, "a")
    [claimed] = _due(driver, hold_seconds=3600.0)
    assert _due(driver) == []

    driver.sql("UPDATE cleave.deletion_entry SET not_before = clock_timestamp()")

    assert _due(driver) == [claimed]


def test_logs_of_a_held_topic_wait_until_it_is_released(driver: StoreDriver, topic_id: int) -> None:
    _add(driver, topic_id, "a")
    driver.do(held_topics.hold, topic_id, "evidence")
    assert _due(driver) == []

    driver.do(held_topics.release, topic_id)

    assert [one.backing_topic for one in _due(driver)] == ["a"]


def test_it_closes_after_two_absences_far_enough_apart(driver: StoreDriver, topic_id: int) -> None:
    _add(driver, topic_id, "a")
    [row] = _due(driver)
    for _ in range(3):  # looking often does not count as looking late
        assert (
            driver.do(deletion_entries.record_absence, row.deletion_entry_id, apart_seconds=3600.0) is False
        )
    assert [row.absences for row in driver.do(deletion_entries.list_open)] == [1]
    assert _due(driver) == []

    driver.sql("UPDATE cleave.deletion_entry SET absent_since = absent_since - interval '2 hours'")
    assert driver.do(deletion_entries.record_absence, row.deletion_entry_id, apart_seconds=3600.0) is True

    assert driver.do(deletion_entries.list_open) == []
    with pytest.raises(NotFound, match="not open"):
        driver.do(deletion_entries.record_absence, row.deletion_entry_id, apart_seconds=1.0)


def test_a_log_that_was_there_again_starts_the_count_anew(driver: StoreDriver, topic_id: int) -> None:
    _add(driver, topic_id, "a")
    [row] = _due(driver)
    driver.do(deletion_entries.record_absence, row.deletion_entry_id, apart_seconds=3600.0)
    driver.do(deletion_entries.record_failure, row.deletion_entry_id, "still there", delay_seconds=0.0)

    [again] = _due(driver)
    assert (again.absences, again.attempts, again.last_error) == (0, 1, "still there")
    assert driver.do(deletion_entries.record_absence, row.deletion_entry_id, apart_seconds=0.0) is False


def test_a_closed_log_can_be_queued_again(driver: StoreDriver, topic_id: int) -> None:
    """Somebody made it by hand once more: the reconciler finds it and queues it."""
    _add(driver, topic_id, "a")
    driver.sql("UPDATE cleave.deletion_entry SET closed_at = clock_timestamp()")

    assert _add(driver, topic_id, "a") == 1
