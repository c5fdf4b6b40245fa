"""How much is left of sealed segments that subscriptions have not read to their end: what to count, and what was counted.

Kept for those that take longer than a moment only. `inspect.undrained` shows it, and says since when it has stood still.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, text

from controller.store.shards import Shards

# What was counted longest ago comes first, so that a fleet with more than one round can count has each counted. What was sealed
# just now gets what the others leave of a round: most of it is drained before it tells anything.
_SLOW = text("""
    SELECT u.topic_id, u.subscription, u.segment_id, t.data_plane, s.backing_topic
      FROM inspect.undrained u
      JOIN cleave.topic t ON t.topic_id = u.topic_id
      JOIN cleave.segment s ON s.topic_id = u.topic_id AND s.segment_id = u.segment_id
     WHERE u.topic_id % :shard_count = ANY (:shards) AND t.data_plane = ANY (:planes)
       AND s.sealed_at < clock_timestamp() - make_interval(secs => :sealed_for)
     ORDER BY s.sealed_at > clock_timestamp() - make_interval(secs => :fresh_for),
              u.counted_at NULLS FIRST, u.topic_id, u.subscription, u.segment_id
     LIMIT :limit
""")
_NOTE = text("""
    INSERT INTO cleave.drain_backlog AS b (topic_id, subscription, segment_id, messages)
    SELECT one.topic_id, one.subscription, one.segment_id, one.messages
      FROM unnest(CAST(:topic_ids AS bigint[]), CAST(:subscriptions AS text[]), CAST(:segment_ids AS bigint[]),
                  CAST(:messages AS bigint[])) AS one (topic_id, subscription, segment_id, messages)
      JOIN cleave.subscription u ON u.topic_id = one.topic_id AND u.name = one.subscription
     ORDER BY 1, 2, 3
    ON CONFLICT (topic_id, subscription, segment_id) DO UPDATE SET
        messages = excluded.messages, counted_at = clock_timestamp(),
        moved_at = CASE WHEN excluded.messages = b.messages THEN b.moved_at ELSE clock_timestamp() END
""")
_FORGET = text("""
    DELETE FROM cleave.drain_backlog b USING cleave.segment s
     WHERE s.topic_id = b.topic_id AND s.segment_id = b.segment_id AND b.topic_id % :shard_count = ANY (:shards)
       AND (s.pruned_epoch IS NOT NULL OR s.drained_at IS NOT NULL
            OR EXISTS (SELECT FROM cleave.segment_drain d WHERE d.topic_id = b.topic_id
                          AND d.subscription = b.subscription AND d.segment_id = b.segment_id))
""")


@dataclass(frozen=True, slots=True)
class SlowDrain:
    """A sealed segment's log that a subscription has been reading for a while."""

    topic_id: int
    subscription: str
    segment_id: int
    data_plane: str
    backing_topic: str


def slow_drains(
    tx: Connection,
    planes: Collection[str],
    shards: Shards,
    *,
    sealed_for_seconds: float,
    fresh_for_seconds: float,
    limit: int,
) -> list[SlowDrain]:
    """Up to `limit` of those sealed for so long, on these data planes: what was not counted for longest first, and what is still
    fresh last.
    """
    bounds = {"sealed_for": sealed_for_seconds, "fresh_for": fresh_for_seconds, "limit": limit}
    rows = tx.execute(_SLOW, {**shards.parameters, "planes": sorted(planes), **bounds})
    return [SlowDrain(*row) for row in rows]


def note(tx: Connection, counted: Mapping[SlowDrain, int], shards: Shards) -> None:
    """What is left of each, in messages. Forgets those of the shards that are read to their end by now."""
    drains: Sequence[SlowDrain] = list(counted)
    if drains:
        tx.execute(
            _NOTE,
            {
                "topic_ids": [one.topic_id for one in drains],
                "subscriptions": [one.subscription for one in drains],
                "segment_ids": [one.segment_id for one in drains],
                "messages": [counted[one] for one in drains],
            },
        )
    tx.execute(_FORGET, shards.parameters)
