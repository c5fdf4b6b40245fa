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


def whole(store: Store, topic: str) -> PublishedLayout:
    """Return all segments that are not pruned, with their parents. The topic is live or being deleted. Raises
    TopicNotFound, or TopicNotLive while the topic is being created.
    """
    return store.in_transaction(published_segments, topic)


def of_queue(store: Store, topic: str, subscription: str) -> tuple[PublishedLayout, str]:
    """Return the segments that the queue subscription has to read, at present or later, with their logs, and the
    `as_of` of this list. Segments that the subscription has drained are left out. The `as_of` changes with each
    seek of the subscription; pass it to `drained` with reports about these segments. Raises TopicNotFound,
    TopicNotLive, SubscriptionNotFound, Conflict if the subscription is not a queue, and the errors of
    `Store.transaction`.
    """
    with store.transaction() as tx:
        row = topics.find_topic(tx, topic)
        topics.demand_live(row.name, row.state)
        key = SubscriptionKey(row.topic_id, subscription)
        # Read before the segments: the segments may be newer than `as_of`, but not older.
        as_of = _demand_queue(tx, key)
        to_read = readable_segments.to_read(tx, row.topic_id, subscription)
    undrained = _undrained(to_read)
    published = PublishedLayout(row.topic_id, row.name, row.data_plane, undrained, to_read.backing_topics)
    return published, as_of


def drained(store: Store, topic: str, subscription: str, as_of: str, segment_ids: Collection[int]) -> None:
    """Record that the queue subscription has drained these sealed segments: its consumers have settled all
    messages. The leader of the topic is notified, and the rows of the topic and the subscription are locked until
    the commit. `as_of` is the value that `of_queue` returned with the segments. Segments that are recorded as
    drained or are pruned are ignored.

    Raises TopicNotFound; SubscriptionNotFound, also while the subscription is being deleted; LostRace if a seek
    has changed `as_of`, so that the caller must read the segments again; Conflict if the subscription is not a
    queue, or if a segment is active or unknown, in which case no segment is marked; and the errors of
    `Store.transaction`.
    """
    with store.transaction() as tx:
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
    """Return the `as_of` of the queue subscription, a text that each seek changes. The subscription may be live or
    being deleted. Raises SubscriptionNotFound, and Conflict if the subscription is of another kind.
    """
    row = subscriptions.get_subscription(tx, key.topic_id, key.name)
    if row.kind is not SubscriptionKind.QUEUE:
        raise Conflict(
            f"subscription {key.name} is recorded as {row.kind.value}; only a QUEUE subscription delivers each message to any consumer"
        )
    return row.as_of
