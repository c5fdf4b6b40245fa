"""Segment lists for consumers without a session: all segments of a topic, sealed ones included, or the
segments that a queue still has to read.

Any worker answers. Consumers of a queue report the sealed segments that they have drained. A report names the
`as_of` of its list and is refused if a seek has changed it, so that the seek is not undone.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection

from controller.domain.errors import Conflict, LostRace
from controller.domain.layout import SegmentLayout
from controller.store.postgres.engine import Store
from controller.store.topics import (
    bucket_owners,
    drains,
    readable_segments,
    subscriptions,
    topics,
)
from controller.store.topics.bucket_owners import SubscriptionKey
from controller.store.topics.published_layout import PublishedLayout, published_segments
from controller.store.topics.subscriptions import SubscriptionKind


class SegmentLists:
    """Reads segment lists and records drained segments. Thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def whole(self, topic: str) -> PublishedLayout:
        """Return all segments that are not pruned, with their parents. The topic is live or being deleted. Raises
        TopicNotFound, or TopicNotLive while the topic is being created.
        """
        with self._store.transaction() as tx:
            return published_segments(tx, topic)

    def of_queue(self, topic: str, subscription: str) -> tuple[PublishedLayout, str]:
        """Return the segments that the queue has to read, now or later; drained segments are left out. Return
        also the `as_of`, which identifies the subscription's position in its history of seeks, and changes
        with each seek. Raises TopicNotFound, TopicNotLive, SubscriptionNotFound; Conflict if the subscription
        is of another kind.
        """
        with self._store.transaction() as tx:
            row = topics.find_topic(tx, topic)
            topics.demand_live(row.name, row.state)
            key = SubscriptionKey(row.topic_id, subscription)
            # Read before the segments: the segments may be newer than `as_of`, but not older.
            as_of = _demand_queue(tx, key)
            to_read = readable_segments.to_read(tx, row.topic_id, subscription)
        undrained = _undrained(to_read)
        published = PublishedLayout(row.topic_id, row.name, row.data_plane, undrained, to_read.backing_topics)
        return published, as_of

    def drained(self, topic: str, subscription: str, as_of: str, segment_ids: Collection[int]) -> None:
        """Record that the queue's consumers have settled all messages of these sealed segments, under the
        locks of topic and subscription. `as_of` is the value in the list from which the segments were read. Pruned
        segments are ignored. Raises TopicNotFound, SubscriptionNotFound, LostRace if a seek has changed
        `as_of`, and Conflict if the subscription is of another kind or a segment is not sealed.
        """
        with self._store.transaction() as tx:
            topic_id = topics.find_topic(tx, topic, lock=True).topic_id
            key = SubscriptionKey(topic_id, subscription)
            _demand_queue(tx, key)
            if subscriptions.as_of(*bucket_owners.lock(tx, key)) != as_of:
                raise LostRace(
                    f"subscription {subscription} of {topic} was moved in the meantime; read the segments again",
                    0.0,
                    what="subscription",
                )
            drains.mark_drained(tx, topic_id, subscription, segment_ids)


def _undrained(to_read: readable_segments.ToRead) -> SegmentLayout:
    """Return the layout of the segments that are not drained."""
    layout = to_read.layout
    undrained = (segment for segment in layout.segments.values() if segment.segment_id not in to_read.drained)
    return SegmentLayout.from_selection(layout.epoch, layout.next_segment_id, undrained)


def _demand_queue(tx: Connection, key: SubscriptionKey) -> str:
    """Return the subscription's `as_of`. Raises Conflict unless the subscription is recorded as a queue.
    Raises SubscriptionNotFound.
    """
    row = subscriptions.get_subscription(tx, key.topic_id, key.name)
    if row.kind is not SubscriptionKind.QUEUE:
        raise Conflict(
            f"subscription {key.name} is recorded as {row.kind.value}; only a QUEUE subscription delivers each message to any consumer"
        )
    return row.as_of
