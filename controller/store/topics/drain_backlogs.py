"""Backlogs of sealed segments that subscriptions have not drained: lists the backlogs to count, and stores the counts.

Only drains that are not completed shortly after the seal are counted. `inspect.undrained` shows the counts and the time since they
last changed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, text

from controller.store.shards import Shards

# The drains that were counted longest ago come first, so that all are counted even if one round cannot count all of them. Recently
# sealed segments come last, because most of them are drained before a count is useful. In each of the two groups, drains that wait for
# their parents come last, because no message of them can be read yet.
_SLOW = text("""
    SELECT u.topic_id, u.subscription, u.segment_id, t.data_plane, s.backing_topic
      FROM inspect.undrained u
      JOIN cleave.topic t ON t.topic_id = u.topic_id
      JOIN cleave.segment s ON s.topic_id = u.topic_id AND s.segment_id = u.segment_id
     WHERE u.topic_id % :shard_count = ANY (:shards) AND t.data_plane = ANY (:planes)
       AND s.sealed_at < clock_timestamp() - make_interval(secs => :sealed_for)
     ORDER BY s.sealed_at > clock_timestamp() - make_interval(secs => :fresh_for), u.waits_for_parents,
              u.counted_at NULLS FIRST, u.topic_id, u.subscription, u.segment_id
     LIMIT :limit
""")
_NOTE = text("""
    INSERT INTO cleave.drain_backlog AS b (topic_id, subscription, segment_id, messages)
    SELECT counted.topic_id, counted.subscription, counted.segment_id, counted.messages
      FROM unnest(CAST(:topic_ids AS bigint[]), CAST(:subscriptions AS text[]), CAST(:segment_ids AS bigint[]),
                  CAST(:messages AS bigint[])) AS counted (topic_id, subscription, segment_id, messages)
      JOIN cleave.subscription u ON u.topic_id = counted.topic_id AND u.name = counted.subscription
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
    """Log of a sealed segment that a subscription has not drained for some time."""

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
    """Return up to `limit` drains from the view `inspect.undrained`: of topics of the shards, on these data planes,
    and of segments that were sealed more than `sealed_for_seconds` ago. Drains of segments that were sealed within
    the last `fresh_for_seconds` come after all others. Each of the two groups begins with the drains that do not wait for
    their parents: first the drains that were never counted, then the drains that were counted longest ago. The drains
    that wait follow in the same order.

    The view has the sealed segments that a live stream subscription of a live topic has not drained. The subscription
    must let segments wait for their parents (`parents_block`), and must have a consumer with a session, or standard
    consumers at a broker. Queue subscriptions, checkpoint groups and subscriptions without consumers are absent.
    """
    bounds = {"sealed_for": sealed_for_seconds, "fresh_for": fresh_for_seconds, "limit": limit}
    rows = tx.execute(_SLOW, {**shards.parameters, "planes": sorted(planes), **bounds})
    return [SlowDrain(*row) for row in rows]


def note(tx: Connection, counted: Mapping[SlowDrain, int], shards: Shards) -> None:
    """Store the backlog of each drain in `counted`, in messages, with the time of the count. The time of the last
    change is kept if the backlog is the same as before. A drain whose subscription does not exist is ignored.

    Also deletes, even if `counted` is empty, the stored backlogs of segments of topics of `shards` that are pruned,
    that the subscription has drained, or that all subscriptions have drained.
    """
    drains: Sequence[SlowDrain] = list(counted)
    if drains:
        tx.execute(
            _NOTE,
            {
                "topic_ids": [drain.topic_id for drain in drains],
                "subscriptions": [drain.subscription for drain in drains],
                "segment_ids": [drain.segment_id for drain in drains],
                "messages": [counted[drain] for drain in drains],
            },
        )
    tx.execute(_FORGET, shards.parameters)
