"""What a subscription has to read now: the ACTIVE segments, the sealed ones it has not finished, and what descends from these.

One statement, so that it is of one moment. Its cost is that of what is there to read, not of all that the topic ever had: a
topic that was reshaped ten thousand times costs no more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, text

from controller.domain.errors import SubscriptionNotFound
from controller.domain.layout import SegmentLayout
from controller.store.topics.layouts import layout_of

# What was sealed before the subscription existed never had a cursor for it, so there is nothing to read. What descends
# from an unread segment waits for it, read already or not (a seek may have gone back beyond it). Each is looked up by its key.
_TO_READ = """
WITH RECURSIVE own AS MATERIALIZED (
    SELECT u.topic_id, u.name, u.created_epoch, u.parents_block, u.drain_consumers, t.epoch, t.next_segment_id
      FROM cleave.subscription u JOIN cleave.topic t USING (topic_id)
     WHERE u.topic_id = :topic_id AND u.name = :subscription
), unread (segment_id) AS (
    SELECT s.segment_id FROM own u JOIN cleave.segment s USING (topic_id)
     WHERE s.state = 'SEALED' AND s.pruned_epoch IS NULL AND s.drained_at IS NULL AND s.sealed_epoch > u.created_epoch
       AND NOT EXISTS (SELECT FROM cleave.segment_drain d
                        WHERE d.topic_id = :topic_id AND d.subscription = :subscription AND d.segment_id = s.segment_id)
     UNION
    SELECT heir.segment_id FROM unread r CROSS JOIN LATERAL unnest(ARRAY(
        SELECT l.child_id FROM cleave.segment_parent l
         WHERE l.topic_id = :topic_id AND l.parent_id = r.segment_id)) AS heir (segment_id)
)
SELECT u.epoch, u.next_segment_id, u.parents_block, u.drain_consumers,
       s.state = 'SEALED' AND (s.sealed_epoch <= u.created_epoch OR EXISTS (
           SELECT FROM cleave.segment_drain d
            WHERE d.topic_id = u.topic_id AND d.subscription = u.name AND d.segment_id = s.segment_id)) AS is_drained,
       s.segment_id, s.range_start, s.range_end, s.merge_depth, s.bucket_splits, s.created_epoch, s.sealed_epoch,
       s.created_at, s.sealed_at, s.legacy_topic_name, s.backing_topic,
       ARRAY(SELECT l.parent_id FROM cleave.segment_parent l
              WHERE l.topic_id = u.topic_id AND l.child_id = s.segment_id ORDER BY l.ordinal, l.parent_id) AS parent_ids
  FROM own u LEFT JOIN cleave.segment s
    ON s.topic_id = u.topic_id AND s.pruned_epoch IS NULL AND s.segment_id = ANY (ARRAY(
       SELECT segment_id FROM unread
        UNION SELECT a.segment_id FROM cleave.segment a WHERE a.topic_id = :topic_id AND a.state = 'ACTIVE'))
"""


@dataclass(frozen=True, slots=True)
class ToRead:
    """`drained` names those of the layout's segments that the subscription has finished. A segment that is not there is read to
    its end or pruned. `parents_block` and `drain_consumers` are the subscription's, see `domain.assignment`.
    """

    layout: SegmentLayout
    drained: frozenset[int]
    backing_topics: Mapping[int, str]
    parents_block: bool = True
    drain_consumers: int = 1


def to_read(tx: Connection, topic_id: int, subscription: str) -> ToRead:
    """What the subscription has to read now. Raises SubscriptionNotFound."""
    rows = tx.execute(text(_TO_READ), {"topic_id": topic_id, "subscription": subscription}).all()
    if not rows:
        raise SubscriptionNotFound(f"topic {topic_id} has no subscription {subscription!r}; create it first")
    found = [row for row in rows if row.segment_id is not None]
    return ToRead(
        layout_of(rows),
        frozenset(row.segment_id for row in found if row.is_drained),
        {row.segment_id: row.backing_topic for row in found},
        rows[0].parents_block,
        rows[0].drain_consumers,
    )
