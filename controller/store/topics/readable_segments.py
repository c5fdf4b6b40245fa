"""Reads the segments that a subscription has to read: ACTIVE segments, sealed segments that are not drained, and their descendants.

One statement reads them, so that the result is consistent. Its cost depends on the number of these segments, not on the number of
segments that the topic ever had.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, text

from controller.domain.layout import SegmentLayout
from controller.store.topics import subscriptions
from controller.store.topics.layouts import PARENT_IDS, SEGMENT_COLUMNS, layout_of

# A segment that was sealed before the subscription existed has no cursor of the subscription, so there is nothing to read. The
# descendants of an undrained segment wait for it, even drained ones (a seek may have moved back). Each is looked up by its key.
_UNREAD = """
WITH RECURSIVE own AS MATERIALIZED (
    SELECT u.topic_id, u.name, u.created_epoch, u.parents_block, u.drain_consumers, t.epoch, t.next_segment_id
      FROM cleave.subscription u JOIN cleave.topic t USING (topic_id)
     WHERE u.topic_id = :topic_id AND u.name = :subscription
), unread (segment_id, waits) AS (
    SELECT s.segment_id, false FROM own u JOIN cleave.segment s USING (topic_id)
     WHERE s.state = 'SEALED' AND s.pruned_epoch IS NULL AND s.drained_at IS NULL AND s.sealed_epoch > u.created_epoch
       AND NOT EXISTS (SELECT FROM cleave.segment_drain d
                        WHERE d.topic_id = :topic_id AND d.subscription = :subscription AND d.segment_id = s.segment_id)
     UNION
    SELECT heir.segment_id, true FROM unread r CROSS JOIN LATERAL unnest(ARRAY(
        SELECT l.child_id FROM cleave.segment_parent l
         WHERE l.topic_id = :topic_id AND l.parent_id = r.segment_id)) AS heir (segment_id)
)
"""
_COLUMNS = f"""
SELECT u.epoch, u.next_segment_id, u.parents_block, u.drain_consumers,
       s.state = 'SEALED' AND (s.sealed_epoch <= u.created_epoch OR EXISTS (
           SELECT FROM cleave.segment_drain d
            WHERE d.topic_id = u.topic_id AND d.subscription = u.name AND d.segment_id = s.segment_id)) AS is_drained,
       {SEGMENT_COLUMNS}, s.backing_topic, {PARENT_IDS} AS parent_ids
"""  # noqa: S608 - constants only
_TO_READ = f"""
{_UNREAD}
{_COLUMNS}
  FROM own u LEFT JOIN cleave.segment s
    ON s.topic_id = u.topic_id AND s.pruned_epoch IS NULL AND s.segment_id = ANY (ARRAY(
       SELECT segment_id FROM unread
        UNION SELECT a.segment_id FROM cleave.segment a WHERE a.topic_id = :topic_id AND a.state = 'ACTIVE'))
"""  # noqa: S608 - constants only
_FRONT = f"""
{_UNREAD}, waiting (segment_id) AS MATERIALIZED (
    SELECT DISTINCT r.segment_id FROM unread r JOIN own ON own.parents_block WHERE r.waits
)
{_COLUMNS}
     , s.segment_id IN (SELECT segment_id FROM waiting) AS waits
  FROM own u LEFT JOIN cleave.segment s
    ON s.topic_id = u.topic_id AND s.pruned_epoch IS NULL AND s.segment_id = ANY (ARRAY(
       (SELECT r.segment_id FROM unread r WHERE NOT r.waits
         UNION SELECT a.segment_id FROM cleave.segment a WHERE a.topic_id = :topic_id AND a.state = 'ACTIVE'
        EXCEPT SELECT segment_id FROM waiting)
         UNION SELECT b.segment_id FROM cleave.bucket_owner b
                WHERE b.topic_id = :topic_id AND b.subscription = :subscription))
"""  # noqa: S608 - constants only


@dataclass(frozen=True, slots=True)
class ToRead:
    """Segments that a subscription has to read. In the result of `to_read`, a segment of the topic that is not in `layout` is drained or
    pruned.
    """

    layout: SegmentLayout
    drained: frozenset[int]
    """Segments of `layout` that the subscription has drained, because a descendant of an unread segment may be drained before a seek."""
    backing_topics: Mapping[int, str]
    """Logs of the segments of `layout`, by segment id."""
    parents_block: bool = True
    """False if a segment need not wait until its ancestors are drained."""
    drain_consumers: int = 1
    """Maximum number of consumers that share the entry buckets of a sealed segment until it is drained."""


@dataclass(frozen=True, slots=True)
class ReadableSegments:
    """Segments that a subscription may read at present, and segments with owned buckets."""

    found: ToRead
    """These segments only; a segment that waits for an ancestor is left out unless one of its buckets has an owner."""
    waiting: frozenset[int]
    """Ids of the segments in `found` that must wait for an ancestor."""

    @property
    def readable(self) -> SegmentLayout:
        """Layout of the segments in `found` that do not wait for an ancestor. A segment that the subscription has
        drained (`found.drained`) is included only while a bucket of the segment has an owner.
        """
        layout = self.found.layout
        if not self.waiting:
            return layout
        segments = [segment for i, segment in layout.segments.items() if i not in self.waiting]
        return SegmentLayout.from_selection(layout.epoch, layout.next_segment_id, segments)


def front(tx: Connection, topic_id: int, subscription: str) -> ReadableSegments:
    """Return the segments that the subscription, live or being deleted, may read at present, and segments with owned
    buckets. Segments that wait for an ancestor and have no owner are left out. Raises SubscriptionNotFound.
    """
    rows = _rows(tx, _FRONT, topic_id, subscription)
    return ReadableSegments(_to_read(rows), frozenset(row.segment_id for row in rows if row.waits))


def to_read(tx: Connection, topic_id: int, subscription: str) -> ToRead:
    """Return the segments that the subscription, live or being deleted, has to read: ACTIVE segments, sealed segments
    that are not drained, and their descendants, which may have to wait. Raises SubscriptionNotFound.
    """
    return _to_read(_rows(tx, _TO_READ, topic_id, subscription))


def _rows(tx: Connection, statement: str, topic_id: int, subscription: str) -> Sequence[Row[Any]]:
    """Return the rows of `statement`, which has at least one row for every existing subscription: for a subscription
    without segments, one whose segment columns are NULL. Raises SubscriptionNotFound if there is no row.
    """
    rows = tx.execute(text(statement), {"topic_id": topic_id, "subscription": subscription}).all()
    if not rows:
        raise subscriptions.missing(tx, topic_id, subscription)
    return rows


def _to_read(rows: Sequence[Row[Any]]) -> ToRead:
    segments = [row for row in rows if row.segment_id is not None]
    return ToRead(
        layout_of(rows),
        frozenset(row.segment_id for row in segments if row.is_drained),
        {row.segment_id: row.backing_topic for row in segments},
        rows[0].parents_block,
        rows[0].drain_consumers,
    )
