"""What the books say should exist on a data plane: the logs behind segments, those reserved, those to be deleted.

Read by the operation runner (which logs carry a subscription) and the reconciler (which compares). Reads only. The
caller lists the data plane's logs, and has to do so *before* `read_books`: then every log in the listing was either
reserved by then or belongs to nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, text

from controller.domain.segment import SegmentState
from controller.store.shards import Shards


@dataclass(frozen=True, slots=True)
class BackingLog:
    """The log behind one segment that is not pruned."""

    segment_id: int
    backing_topic: str
    state: SegmentState
    sealed_epoch: int | None
    is_busy: bool
    """In a live operation. Only that operation's runner acts on the log."""
    is_drained: bool
    """Recorded as read to its end by every live subscription that began before it was sealed."""
    parent_topics: tuple[str, ...]
    """Logs of its parents that are not pruned."""


@dataclass(frozen=True, slots=True)
class Books:
    """Everything recorded about one topic's logs at one instant."""

    topic_state: str
    epoch: int
    next_segment_id: int
    subscriptions: Mapping[str, int]
    """Live ones, with the epoch each was created at."""
    deleting_subscriptions: frozenset[str]
    has_checkpoints: bool
    logs: tuple[BackingLog, ...]
    reserved: frozenset[str]
    """Children of live operations: they may or may not exist yet."""
    tombstoned: frozenset[str]
    """Being deleted."""
    changes_subscriptions: bool
    """A subscription is being created or deleted: which cursors should exist is not settled."""

    def expected_on(self, log: BackingLog) -> tuple[str, ...]:
        """Live subscriptions whose cursor the log must have: all but those made after it was sealed."""
        return tuple(
            sorted(
                name
                for name, created_epoch in self.subscriptions.items()
                if log.sealed_epoch is None or log.sealed_epoch > created_epoch
            )
        )


_LOGS = text("""
    SELECT s.segment_id, s.backing_topic, s.state, s.sealed_epoch,
           EXISTS (SELECT FROM cleave.operation_parent p
                    WHERE p.topic_id = s.topic_id AND p.segment_id = s.segment_id AND p.live) AS is_busy,
           NOT EXISTS (SELECT FROM cleave.subscription u
                        WHERE u.topic_id = s.topic_id AND u.state = 'live' AND u.created_epoch < s.sealed_epoch
                          AND NOT EXISTS (SELECT FROM cleave.segment_drain d
                                           WHERE d.topic_id = s.topic_id AND d.subscription = u.name
                                             AND d.segment_id = s.segment_id)) AS is_drained,
           ARRAY(SELECT q.backing_topic FROM cleave.segment_parent l
                   JOIN cleave.segment q ON q.topic_id = l.topic_id AND q.segment_id = l.parent_id
                  WHERE l.topic_id = s.topic_id AND l.child_id = s.segment_id AND q.pruned_epoch IS NULL
                  ORDER BY l.ordinal) AS parent_topics
      FROM cleave.segment s
     WHERE s.topic_id = :topic_id AND s.pruned_epoch IS NULL
     ORDER BY s.range_start, s.segment_id""")

_RESERVED = text("""
    SELECT c.backing_topic
      FROM cleave.operation_child c JOIN cleave.operation o USING (operation_id)
     WHERE o.topic_id = :topic_id AND o.finished_at IS NULL""")

_TOPIC = text("""
    SELECT t.state, t.epoch, t.next_segment_id, t.data_plane,
           EXISTS (SELECT FROM cleave.operation o
                    WHERE o.topic_id = t.topic_id AND o.finished_at IS NULL
                      AND o.kind IN ('subscription_create', 'subscription_delete')) AS changes_subscriptions
      FROM cleave.topic t WHERE t.topic_id = :topic_id""")

_SUBSCRIPTIONS = text("""
    SELECT name, kind, state, created_epoch FROM cleave.subscription WHERE topic_id = :topic_id""")

_TOMBSTONED = text("""
    SELECT b.backing_topic
      FROM cleave.tombstone b JOIN cleave.topic t USING (topic_id)
     WHERE b.data_plane = :data_plane AND b.closed_at IS NULL
       AND t.name = (SELECT name FROM cleave.topic WHERE topic_id = :topic_id)""")

_COMPARABLE = text("""
    SELECT t.topic_id
      FROM cleave.topic t
     WHERE t.topic_id > :after
       AND (t.state <> 'deleted' OR t.deleted_at > clock_timestamp() - :deleted_hours * interval '1 hour')
       AND (CAST(:shards AS bigint[]) IS NULL
            OR t.topic_id % CAST(:shard_count AS bigint) = ANY (CAST(:shards AS bigint[])))
     ORDER BY t.topic_id
     LIMIT :limit""")

_CARRYING = text("""
    SELECT s.backing_topic
      FROM cleave.segment s
      JOIN cleave.subscription u ON u.topic_id = s.topic_id AND u.name = :subscription
     WHERE s.topic_id = :topic_id AND s.pruned_epoch IS NULL
       AND (s.sealed_epoch IS NULL OR s.sealed_epoch > u.created_epoch)
     ORDER BY s.range_start, s.segment_id""")


def backing_topics(tx: Connection, topic_id: int) -> list[str]:
    """Logs of every segment that is not pruned, sealed ones included, by range."""
    return [log.backing_topic for log in _logs(tx, topic_id)]


def carrying_subscription(tx: Connection, topic_id: int, subscription: str) -> list[str]:
    """Logs that were active at or after the subscription's first epoch: those must have its cursor."""
    parameters = {"topic_id": topic_id, "subscription": subscription}
    return [row.backing_topic for row in tx.execute(_CARRYING, parameters)]


def read_books(tx: Connection, topic_id: int) -> Books:
    """Everything recorded about the topic's logs. Hold the topic's row lock to act on what it says."""
    topic = tx.execute(_TOPIC, {"topic_id": topic_id}).one()
    tombstoned = tx.execute(_TOMBSTONED, {"topic_id": topic_id, "data_plane": topic.data_plane})
    subscriptions = tx.execute(_SUBSCRIPTIONS, {"topic_id": topic_id}).all()
    return Books(
        topic_state=topic.state,
        epoch=topic.epoch,
        subscriptions={row.name: row.created_epoch for row in subscriptions if row.state == "live"},
        deleting_subscriptions=frozenset(row.name for row in subscriptions if row.state != "live"),
        has_checkpoints=any(row.kind == "CHECKPOINT" and row.state == "live" for row in subscriptions),
        next_segment_id=topic.next_segment_id,
        logs=_logs(tx, topic_id),
        reserved=frozenset(row.backing_topic for row in tx.execute(_RESERVED, {"topic_id": topic_id})),
        tombstoned=frozenset(row.backing_topic for row in tombstoned),
        changes_subscriptions=topic.changes_subscriptions,
    )


def comparable_topics(
    tx: Connection, *, limit: int, after: int = 0, deleted_hours: float = 24.0, shards: Shards | None = None
) -> list[int]:
    """Ids above `after` of topics to compare: those in use, and those deleted so recently that a call held up on its
    way may still make a log of theirs.
    """
    parameters = {"shard_count": None, "shards": None} if shards is None else shards.parameters
    rows = tx.execute(
        _COMPARABLE, {"limit": limit, "after": after, "deleted_hours": deleted_hours, **parameters}
    )
    return [row.topic_id for row in rows]


def _logs(tx: Connection, topic_id: int) -> tuple[BackingLog, ...]:
    return tuple(
        BackingLog(
            segment_id=row.segment_id,
            backing_topic=row.backing_topic,
            state=SegmentState(row.state),
            sealed_epoch=row.sealed_epoch,
            is_busy=row.is_busy,
            is_drained=row.is_drained,
            parent_topics=tuple(row.parent_topics),
        )
        for row in tx.execute(_LOGS, {"topic_id": topic_id})
    )
