"""What consumers without a session read: a topic's segments, sealed ones included, or those that a queue has still to read.

Any worker answers. A queue's consumers say which sealed segments they have found drained; what they say counts as of the
text that came with the list, so that a seek in between is not undone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sqlalchemy import Connection

from controller.domain.errors import Conflict, LostRace
from controller.domain.layout import SegmentLayout
from controller.store.postgres.engine import Store
from controller.store.topics import bucket_owners, drains, published, readable_segments, subscriptions, topics
from controller.store.topics.bucket_owners import SubscriptionKey
from controller.store.topics.subscriptions import SubscriptionKind


@dataclass(frozen=True, slots=True)
class SegmentList:
    """Segments at one epoch, and the log behind each. `as_of` stands for where a subscription is, None where the list is of no
    subscription; it rises with each seek.
    """

    topic_id: int
    topic: str
    data_plane: str
    layout: SegmentLayout
    backing_topics: Mapping[int, str]
    as_of: str | None = None


class SegmentLists:
    """Safe to share between threads."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def whole(self, topic: str) -> SegmentList:
        """Every segment that is not pruned, with its parents. Raises TopicNotFound, TopicNotLive."""
        with self._store.transaction() as tx:
            found = published.published_segments(tx, topic)
        return SegmentList(found.topic_id, found.name, found.data_plane, found.layout, found.backing_topics)

    def of_queue(self, topic: str, subscription: str) -> SegmentList:
        """The segments that the queue has something to read in, now or later. Raises TopicNotFound, TopicNotLive,
        SubscriptionNotFound; Conflict where the subscription is of another kind.
        """
        with self._store.transaction() as tx:
            row = topics.find_topic(tx, topic)
            topics.demand_live(row.name, row.state)
            key = SubscriptionKey(row.topic_id, subscription)
            as_of = _demand_queue(
                tx, key
            )  # before the segments: they may be newer than what it stands for, not older
            found = readable_segments.to_read(tx, row.topic_id, subscription)
        return SegmentList(
            row.topic_id, row.name, row.data_plane, _without(found), found.backing_topics, as_of
        )

    def drained(self, topic: str, subscription: str, as_of: str, segment_ids: Collection[int]) -> None:
        """The queue's consumers have settled all of these sealed segments. Raises LostRace when `as_of` is another
        by now, else as `of_queue` and `drains.mark_drained`.
        """
        with self._store.transaction() as tx:
            topic_id = topics.find_topic(tx, topic, lock=True).topic_id
            key = SubscriptionKey(topic_id, subscription)
            _demand_queue(tx, key)
            if subscriptions.as_of(*bucket_owners.lock(tx, key)) != as_of:
                raise LostRace(
                    f"subscription {subscription} of {topic} was moved meanwhile; look again",
                    0.0,
                    what="subscription",
                )
            drains.mark_drained(tx, topic_id, subscription, segment_ids)


def _without(found: readable_segments.ToRead) -> SegmentLayout:
    """The layout of those that are not drained."""
    layout = found.layout
    left = (one for one in layout.segments.values() if one.segment_id not in found.drained)
    return SegmentLayout.from_selection(layout.epoch, layout.next_segment_id, left)


def _demand_queue(tx: Connection, key: SubscriptionKey) -> str:
    """Where it is, as a text. Raises Conflict unless it is recorded as a queue."""
    row = subscriptions.get_subscription(tx, key.topic_id, key.name)
    if row.kind is not SubscriptionKind.QUEUE:
        raise Conflict(
            f"subscription {key.name} is recorded as {row.kind.value}; only a QUEUE subscription is shared message by message"
        )
    return row.as_of
