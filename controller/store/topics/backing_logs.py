"""What the books say should exist on a data plane: the logs behind segments, those reserved, those to be deleted.

Read by the operation runner (which logs carry a subscription) and the reconciler (which compares). Reads only. The
caller lists the data plane's logs, and has to do so *before* `read_books`: then every log in the listing was either
reserved by then or belongs to nobody.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, TextClause, text

from controller.domain.log_origin import LogOrigin, Ownership
from controller.domain.operation import OperationState
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
    drained_by: frozenset[str] = frozenset()
    """Subscriptions that are recorded to have read the log to its end."""


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
    reserved: Mapping[str, OperationState]
    """Children of live operations, with the state of the operation. The logs may or may not exist yet."""
    tombstoned: frozenset[str]
    """Being deleted."""
    changes_subscriptions: bool
    """A subscription is being created or deleted: which cursors should exist is not settled."""
    is_verified: bool
    """True if the logs were compared with the journal under the present database."""
    held_reason: str | None
    """Evidence that the logs are ahead of the journal; None if the topic is not held."""

    @property
    def names(self) -> frozenset[str]:
        """Logs that the journal accounts for: segments, children of live operations, and logs being deleted."""
        return frozenset(one.backing_topic for one in self.logs) | self.reserved.keys() | self.tombstoned

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
    SELECT s.topic_id, s.segment_id, s.backing_topic, s.state, s.sealed_epoch,
           EXISTS (SELECT FROM cleave.operation_parent p
                    WHERE p.topic_id = s.topic_id AND p.segment_id = s.segment_id AND p.live) AS is_busy,
           NOT cleave.awaits_reader(s.topic_id, s.segment_id, s.sealed_epoch) AS is_drained,
           ARRAY(SELECT d.subscription FROM cleave.segment_drain d
                  WHERE d.topic_id = s.topic_id AND d.segment_id = s.segment_id) AS drained_by,
           ARRAY(SELECT q.backing_topic FROM cleave.segment_parent l
                   JOIN cleave.segment q ON q.topic_id = l.topic_id AND q.segment_id = l.parent_id
                  WHERE l.topic_id = s.topic_id AND l.child_id = s.segment_id AND q.pruned_epoch IS NULL
                  ORDER BY l.ordinal) AS parent_topics
      FROM cleave.segment s
     WHERE s.topic_id = ANY (:topic_ids) AND s.pruned_epoch IS NULL
     ORDER BY s.range_start, s.segment_id""")

_RESERVED = text("""
    SELECT o.topic_id, c.backing_topic, o.state
      FROM cleave.operation_child c JOIN cleave.operation o USING (operation_id)
     WHERE o.topic_id = ANY (:topic_ids) AND o.finished_at IS NULL""")

_TOPICS = text("""
    SELECT t.topic_id, t.state, t.epoch, t.next_segment_id, t.held_reason,
           t.verified_under IS NOT DISTINCT FROM (SELECT cleave.database_identity()) AS is_verified,
           EXISTS (SELECT FROM cleave.operation o
                    WHERE o.topic_id = t.topic_id AND o.finished_at IS NULL
                      AND o.kind IN ('subscription_create', 'subscription_delete')) AS changes_subscriptions
      FROM cleave.topic t WHERE t.topic_id = ANY (:topic_ids)""")

_SUBSCRIPTIONS = text("""
    SELECT topic_id, name, kind, state, created_epoch FROM cleave.subscription WHERE topic_id = ANY (:topic_ids)""")

_TOMBSTONED = text("""
    SELECT w.topic_id, b.backing_topic
      FROM cleave.tombstone b
      JOIN cleave.topic t USING (topic_id)
      JOIN cleave.topic w ON w.name = t.name AND w.data_plane = b.data_plane
     WHERE b.closed_at IS NULL AND w.topic_id = ANY (:topic_ids)""")

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


_OWNERSHIP = text("""
    SELECT w.name, o.operation_id IS NOT NULL AS is_reserved, CAST(o.token AS text) AS token,
           EXISTS (SELECT FROM cleave.segment s WHERE s.backing_topic = w.name AND s.legacy_topic_name = w.name) AS is_adopted,
           EXISTS (SELECT FROM cleave.segment s WHERE s.backing_topic = w.name) AS was_active
      FROM unnest(CAST(:names AS text[])) AS w (name)
      LEFT JOIN cleave.operation_child c ON c.backing_topic = w.name
      LEFT JOIN cleave.operation o USING (operation_id)""")


def ownership(tx: Connection, names: Collection[str]) -> dict[str, Ownership]:
    """Return which operation of this journal reserved each log's name, and the token that it stored with the log."""
    rows = tx.execute(_OWNERSHIP, {"names": sorted(names)}) if names else ()
    return {row.name: Ownership(row.is_reserved, row.token, row.is_adopted, row.was_active) for row in rows}


_ORIGINS = text("""
    SELECT c.backing_topic, CAST(o.token AS text) AS token, coalesce(s.created_epoch, t.epoch + 1) AS epoch, c.bucket_splits,
           ARRAY(SELECT l.parent_id FROM cleave.segment_parent l
                  WHERE l.topic_id = c.topic_id AND l.child_id = c.segment_id ORDER BY l.ordinal) AS parent_ids
      FROM cleave.operation_child c
      JOIN cleave.operation o USING (operation_id)
      JOIN cleave.topic t ON t.topic_id = c.topic_id
      LEFT JOIN cleave.segment s ON s.topic_id = c.topic_id AND s.segment_id = c.segment_id
     WHERE c.backing_topic = ANY (CAST(:names AS text[])) AND o.token IS NOT NULL""")


def origins(tx: Connection, names: Iterable[str]) -> dict[str, LogOrigin]:
    """Return the creation records to store with these logs if they have to be created once more.

    A log is absent if no operation of this journal reserved its name, or if the operation has no token.
    """
    return {
        row.backing_topic: LogOrigin(row.token, row.epoch, tuple(row.parent_ids), tuple(row.bucket_splits))
        for row in tx.execute(_ORIGINS, {"names": sorted(names)})
    }


def backing_topics(tx: Connection, topic_id: int) -> list[str]:
    """Logs of every segment that is not pruned, sealed ones included, by range."""
    return [row.backing_topic for row in tx.execute(_LOGS, {"topic_ids": [topic_id]})]


def carrying_subscription(tx: Connection, topic_id: int, subscription: str) -> list[str]:
    """Logs that were active at or after the subscription's first epoch: those must have its cursor."""
    parameters = {"topic_id": topic_id, "subscription": subscription}
    return [row.backing_topic for row in tx.execute(_CARRYING, parameters)]


def read_books(tx: Connection, topic_ids: Collection[int]) -> dict[int, Books]:
    """Everything recorded about the topics' logs, by topic id; a topic that is not there is absent.

    Hold a topic's row lock to act on what it says.
    """
    of_topics = {"topic_ids": list(topic_ids)}
    topics = tx.execute(_TOPICS, of_topics).all()
    subscriptions = _grouped(tx, _SUBSCRIPTIONS, of_topics)
    logs = _grouped(tx, _LOGS, of_topics)
    reserved = _grouped(tx, _RESERVED, of_topics)
    tombstoned = _grouped(tx, _TOMBSTONED, of_topics)
    return {
        row.topic_id: _books(
            row,
            subscriptions[row.topic_id],
            logs[row.topic_id],
            reserved={one.backing_topic: OperationState(one.state) for one in reserved[row.topic_id]},
            tombstoned=frozenset(one.backing_topic for one in tombstoned[row.topic_id]),
        )
        for row in topics
    }


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


def _grouped(
    tx: Connection, statement: TextClause, parameters: Mapping[str, object]
) -> defaultdict[int, list[Row[Any]]]:
    """Rows by topic."""
    found: defaultdict[int, list[Row[Any]]] = defaultdict(list)
    for row in tx.execute(statement, parameters):
        found[row.topic_id].append(row)
    return found


def _books(
    topic: Row[Any],
    subscriptions: Sequence[Row[Any]],
    logs: Sequence[Row[Any]],
    *,
    reserved: Mapping[str, OperationState],
    tombstoned: frozenset[str],
) -> Books:
    return Books(
        topic_state=topic.state,
        epoch=topic.epoch,
        subscriptions={row.name: row.created_epoch for row in subscriptions if row.state == "live"},
        deleting_subscriptions=frozenset(row.name for row in subscriptions if row.state != "live"),
        has_checkpoints=any(row.kind == "CHECKPOINT" and row.state == "live" for row in subscriptions),
        next_segment_id=topic.next_segment_id,
        logs=tuple(_log(row) for row in logs),
        reserved=reserved,
        tombstoned=tombstoned,
        changes_subscriptions=topic.changes_subscriptions,
        is_verified=topic.is_verified,
        held_reason=topic.held_reason,
    )


def _log(row: Row[Any]) -> BackingLog:
    return BackingLog(
        segment_id=row.segment_id,
        backing_topic=row.backing_topic,
        state=SegmentState(row.state),
        sealed_epoch=row.sealed_epoch,
        is_busy=row.is_busy,
        is_drained=row.is_drained,
        parent_topics=tuple(row.parent_topics),
        drained_by=frozenset(row.drained_by),
    )
