"""Drains: marks of the clients that read, and segments that were none of a subscription's business."""

from __future__ import annotations

import pytest

from controller.domain.errors import Conflict, SubscriptionNotFound
from controller.store.topics import drains
from tests.support.store_driver import StoreDriver


def test_segments_sealed_before_a_subscription_count_as_drained(driver: StoreDriver) -> None:
    topic_id = driver.create().topic_id
    driver.subscribe(topic_id, "early")
    driver.split(topic_id, 0)
    driver.subscribe(topic_id, "late")
    driver.split(topic_id, 1)

    assert driver.do(drains.drained, topic_id, "early") == set()
    assert driver.do(drains.drained, topic_id, "late") == {0}
    assert driver.do(drains.undrained_by_anybody, topic_id, [0, 1, 2]) == {
        0: ["early"],
        1: ["early", "late"],
        2: ["early", "late"],
    }


def test_marks_are_set_twice_and_taken_back(driver: StoreDriver) -> None:
    topic_id = driver.create().topic_id
    driver.subscribe(topic_id, "s")
    driver.split(topic_id, 0)
    driver.do(drains.mark_drained, topic_id, "s", [0])
    driver.do(drains.mark_drained, topic_id, "s", [0])
    assert driver.do(drains.drained, topic_id, "s") == {0}

    driver.do(drains.undrain, topic_id, "s", [0])
    assert driver.do(drains.drained, topic_id, "s") == set()


def test_an_active_or_unknown_segment_is_never_drained(driver: StoreDriver) -> None:
    topic_id = driver.create().topic_id
    driver.subscribe(topic_id, "s")

    for segment_id in (0, 404):
        with pytest.raises(Conflict, match=f"segment {segment_id} .* not sealed"):
            driver.do(drains.mark_drained, topic_id, "s", [segment_id])
    with pytest.raises(SubscriptionNotFound):
        driver.do(drains.mark_drained, topic_id, "x", [])
