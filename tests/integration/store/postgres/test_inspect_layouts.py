"""Layouts as people see them: now, then, and how one came from the other."""

from __future__ import annotations

from datetime import datetime, timedelta

from controller.domain.drain_barrier import candidates
from controller.domain.layout import SegmentLayout
from controller.domain.reshape import plan_merge
from controller.store.topics.subscriptions import SubscriptionKind
from tests.support.inspection import NAME, ask, busy_history
from tests.support.store_driver import StoreDriver


def test_a_gap_in_the_ring_shows_and_a_whole_ring_does_not(driver: StoreDriver) -> None:
    topic_id = busy_history(driver)
    driver.create("topic://t/n/b", segments=3)

    assert ask(driver, "SELECT * FROM inspect.uncovered_ranges") == []

    driver.sql(
        """
        UPDATE cleave.segment SET state = 'SEALED', sealed_epoch = 9, sealed_at = now()
         WHERE topic_id = :id AND state = 'ACTIVE' AND range_start > 0
    """,
        id=topic_id,
    )

    [gap] = ask(driver, "SELECT topic, hash_range, range_start, range_end FROM inspect.uncovered_ranges")
    assert gap == {"topic": NAME, "hash_range": "4000-ffff", "range_start": 16384, "range_end": 65535}


def test_a_topic_being_made_or_gone_covers_nothing_and_that_is_no_gap(driver: StoreDriver) -> None:
    driver.intend_create("topic://t/n/creating")
    driver.delete(driver.create(NAME).topic_id)

    assert ask(driver, "SELECT * FROM inspect.uncovered_ranges") == []
    assert ask(driver, "SELECT * FROM inspect.layout_now") == []


def test_every_past_layout_is_the_one_the_store_tells(driver: StoreDriver) -> None:
    topic_id = busy_history(driver)
    changes = ask(driver, "SELECT epoch, committed_at FROM inspect.layout_changes ORDER BY epoch")

    assert [change["epoch"] for change in changes] == list(range(6))
    for change in changes:
        expected = shape(driver.layout_at(topic_id, change["epoch"]))
        by_epoch = ask(
            driver, "SELECT * FROM inspect.layout_at(:topic, :epoch)", topic=NAME, epoch=change["epoch"]
        )
        by_instant = ask(
            driver,
            "SELECT * FROM inspect.layout_at(:topic, CAST(:instant AS timestamptz))",
            topic=NAME,
            instant=change["committed_at"],
        )
        assert {row["segment_id"]: (row["state"], row["hash_range"]) for row in by_epoch} == expected
        assert by_instant == by_epoch
        assert {row["epoch"] for row in by_epoch} == {change["epoch"]}


def shape(layout: SegmentLayout) -> dict[int, tuple[str, str]]:
    """State and range by id."""
    return {i: (segment.state.value, str(segment.hash_range)) for i, segment in layout.segments.items()}


def test_before_the_first_layout_and_after_the_last_epoch_there_is_nothing(driver: StoreDriver) -> None:
    busy_history(driver)
    [first] = ask(driver, "SELECT committed_at FROM inspect.layout_changes WHERE epoch = 0")
    instant: datetime = first["committed_at"] - timedelta(microseconds=1)

    before = "SELECT * FROM inspect.layout_at(:topic, CAST(:instant AS timestamptz))"
    assert ask(driver, before, topic=NAME, instant=instant) == []
    assert ask(driver, "SELECT * FROM inspect.layout_at(:topic, 99)", topic=NAME) == []
    assert ask(driver, "SELECT * FROM inspect.layout_at('topic://no/such/topic', 0)") == []


def test_lineage_has_every_relative_at_its_shortest_distance_pruned_ones_included(
    driver: StoreDriver,
) -> None:
    busy_history(driver)

    def lineage(segment_id: int) -> dict[int, int]:
        rows = ask(
            driver, "SELECT segment_id, depth FROM inspect.lineage(:topic, :id)", topic=NAME, id=segment_id
        )
        return {row["segment_id"]: row["depth"] for row in rows}

    assert lineage(7) == {7: 0, 4: -1, 6: -1, 3: -2, 5: -2, 1: -2, 0: -3}
    assert lineage(0) == {0: 0, 2: 1, 3: 1, 4: 2, 5: 2, 6: 3, 7: 3}
    assert lineage(2) == {0: -1, 2: 0}
    assert lineage(99) == {}
    pruned = ask(
        driver, "SELECT segment_id FROM inspect.lineage(:topic, 7) WHERE pruned_at IS NOT NULL", topic=NAME
    )
    assert [row["segment_id"] for row in pruned] == [0]


def test_a_name_used_again_answers_for_both_lives(driver: StoreDriver) -> None:
    driver.delete(driver.create(NAME, segments=2).topic_id)
    driver.create(NAME, segments=1)
    [first, *_] = ask(driver, "SELECT committed_at FROM inspect.layout_changes ORDER BY committed_at")

    at_instant = (
        "SELECT segment_id FROM inspect.layout_at(:topic, CAST(:instant AS timestamptz)) ORDER BY segment_id"
    )
    then = ask(driver, at_instant, topic=NAME, instant=first["committed_at"])
    now = ask(driver, "SELECT segment_id FROM inspect.layout_now WHERE topic = :topic", topic=NAME)
    at_zero = ask(driver, "SELECT segment_id FROM inspect.layout_at(:topic, 0)", topic=NAME)

    assert [row["segment_id"] for row in then] == [0, 1]
    assert now == at_zero == [{"segment_id": 2}]
    assert [
        row["depth"] for row in ask(driver, "SELECT depth FROM inspect.lineage(:topic, 1)", topic=NAME)
    ] == [0]


def test_the_drain_barrier_is_the_domains(driver: StoreDriver) -> None:
    topic_id = driver.create(NAME, segments=2, subscriptions=["early"], splits=[0]).topic_id
    driver.subscribe(topic_id, "late", from_latest=True)
    driver.reshape(topic_id, lambda layout: plan_merge(layout, 3, 1))
    driver.split(topic_id, 4)
    driver.sql(
        "INSERT INTO cleave.segment_drain (topic_id, subscription, segment_id) VALUES (:id, 'early', 0)",
        id=topic_id,
    )
    layout = driver.layout(topic_id)

    for subscription, drained in (("early", {0}), ("late", {0})):
        rows = ask(
            driver,
            "SELECT segment_id, barrier FROM inspect.assignments WHERE subscription = :name",
            name=subscription,
        )
        readable = {row["segment_id"] for row in rows if row["barrier"] == "readable"}
        assert readable == {segment.segment_id for segment in candidates(layout, drained)}
        assert {row["segment_id"] for row in rows if row["barrier"] == "drained"} == drained


def test_a_queue_subscription_waits_for_nothing(driver: StoreDriver) -> None:
    topic_id = driver.create(NAME).topic_id
    driver.subscribe(topic_id, "work", SubscriptionKind.QUEUE)
    driver.split(topic_id, 0)

    rows = ask(driver, "SELECT segment_id, barrier FROM inspect.assignments ORDER BY segment_id")

    assert [(row["segment_id"], row["barrier"]) for row in rows] == [(i, "readable") for i in range(3)]
