"""Reads the logs that should exist on a data plane (the logs of segments, reserved logs, and logs to be deleted), and
the topics whose logs are compared.

The operation runner reads which logs have a subscription; the reconciler compares. The caller lists the logs of the
data plane, and must do so *before* `read_expected_logs`: then each listed log was reserved by that time or is
unmanaged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, text

from controller.domain.log_origin import LogOrigin, Ownership
from controller.domain.operation import OperationState
from controller.domain.segment import SegmentState
from controller.store.postgres.rows_by_topic import rows_by_topic
from controller.store.shards import Shards, filter_of


@dataclass(frozen=True, slots=True)
class BackingLog:
    """Log of a segment that is not pruned."""

    segment_id: int
    backing_topic: str
    state: SegmentState
    sealed_epoch: int | None
    is_busy: bool
    """True if the segment is in a live operation. Then only the runner of the operation acts on the log."""
    is_drained: bool
    """True if every live subscription that began before the segment was sealed is recorded to have drained it. For an ACTIVE segment, True
    and without meaning.
    """
    parent_topics: tuple[str, ...]
    """Logs of the parents that are not pruned."""
    drained_by: frozenset[str] = frozenset()
    """Subscriptions that are recorded to have drained the segment."""


@dataclass(frozen=True, slots=True)
class ExpectedLogs:
    """All metadata about the logs of one topic, at one time if the topic row was locked before the metadata was read."""

    topic_state: str
    epoch: int
    next_segment_id: int
    subscriptions: Mapping[str, int]
    """Creation epochs of the live subscriptions, by name."""
    deleting_subscriptions: frozenset[str]
    """Subscriptions that are being deleted."""
    has_checkpoints: bool
    """True if a live subscription is read by a checkpoint group."""
    logs: tuple[BackingLog, ...]
    """Logs of the segments that are not pruned, by range."""
    reserved: Mapping[str, OperationState]
    """States of the live operations that reserved logs for children, by log. The logs may not exist yet."""
    pending_deletions: frozenset[str]
    """Logs with an open deletion entry, of this topic and of every other topic that had its name."""
    changes_subscriptions: bool
    """True if a subscription is being created or deleted, so that the expected cursors are not determined."""
    is_verified: bool
    """True if the logs were compared with the journal under the present database."""
    held_reason: str | None
    """Evidence that the logs are ahead of the journal; None if the topic is not held."""

    @property
    def names(self) -> frozenset[str]:
        """Logs that the journal knows: logs of segments, of children of live operations, and logs being deleted."""
        return (
            frozenset(log.backing_topic for log in self.logs) | self.reserved.keys() | self.pending_deletions
        )

    def expected_on(self, log: BackingLog) -> tuple[str, ...]:
        """Return the live subscriptions whose cursor the log must have: all except those that were created after the
        segment was sealed or have drained it.
        """
        return tuple(
            sorted(
                name
                for name, created_epoch in self.subscriptions.items()
                if name not in log.drained_by
                and (log.sealed_epoch is None or log.sealed_epoch > created_epoch)
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

_PENDING_DELETIONS = text("""
    SELECT w.topic_id, b.backing_topic
      FROM cleave.deletion_entry b
      JOIN cleave.topic t USING (topic_id)
      JOIN cleave.topic w ON w.name = t.name AND w.data_plane = b.data_plane
     WHERE b.closed_at IS NULL AND w.topic_id = ANY (:topic_ids)""")

_CARRYING = text("""
    SELECT s.backing_topic
      FROM cleave.segment s
      JOIN cleave.subscription u ON u.topic_id = s.topic_id AND u.name = :subscription
     WHERE s.topic_id = :topic_id AND s.pruned_epoch IS NULL
       AND (s.sealed_epoch IS NULL OR s.sealed_epoch > u.created_epoch)
     ORDER BY s.range_start, s.segment_id""")

_MADE_SINCE = text("""
    SELECT s.backing_topic,
           EXISTS (SELECT FROM cleave.segment_parent l
                     JOIN cleave.segment q ON q.topic_id = l.topic_id AND q.segment_id = l.parent_id
                    WHERE l.topic_id = s.topic_id AND l.child_id = s.segment_id AND q.pruned_epoch IS NOT NULL) AS has_pruned_parent
      FROM cleave.operation o
      JOIN cleave.segment s ON s.topic_id = o.topic_id AND s.created_at > o.intended_at
     WHERE o.operation_id = :operation_id AND s.pruned_epoch IS NULL""")

_OWNERSHIP = text("""
    SELECT w.name, o.operation_id IS NOT NULL OR r.log_token IS NOT NULL AS is_reserved, coalesce(r.log_token, CAST(o.token AS text)) AS token,
           EXISTS (SELECT FROM cleave.segment s WHERE s.backing_topic = w.name AND s.legacy_topic_name = w.name) AS is_adopted,
           EXISTS (SELECT FROM cleave.segment s WHERE s.backing_topic = w.name) AS was_active
      FROM unnest(CAST(:names AS text[])) AS w (name)
      LEFT JOIN cleave.operation_child c ON c.backing_topic = w.name
      LEFT JOIN cleave.operation o USING (operation_id)
      LEFT JOIN LATERAL (SELECT s.log_token FROM cleave.segment s WHERE s.backing_topic = w.name AND s.log_token IS NOT NULL
                          ORDER BY s.topic_id DESC LIMIT 1) r ON true""")


def ownership(tx: Connection, names: Collection[str]) -> dict[str, Ownership]:
    """Return the journal's record of each of these names of logs, by name. A name that neither an operation of this
    journal reserved nor a recovery recorded has a record whose `is_reserved` is False.
    """
    rows = tx.execute(_OWNERSHIP, {"names": sorted(names)}) if names else ()
    return {row.name: Ownership(row.is_reserved, row.token, row.is_adopted, row.was_active) for row in rows}


_ORIGINS = text("""
    SELECT w.name, coalesce(s.log_token, CAST(o.token AS text)) AS token, coalesce(s.created_epoch, t.epoch + 1) AS epoch,
           coalesce(s.bucket_splits, c.bucket_splits) AS bucket_splits,
           ARRAY(SELECT l.parent_id FROM cleave.segment_parent l
                  WHERE l.topic_id = s.topic_id AND l.child_id = s.segment_id ORDER BY l.ordinal) AS parent_ids
      FROM unnest(CAST(:names AS text[])) AS w (name)
      LEFT JOIN cleave.operation_child c ON c.backing_topic = w.name
      LEFT JOIN cleave.operation o USING (operation_id)
      LEFT JOIN cleave.topic t ON t.topic_id = c.topic_id
      LEFT JOIN cleave.segment s ON s.backing_topic = w.name
     WHERE coalesce(s.log_token, CAST(o.token AS text)) IS NOT NULL
     ORDER BY s.topic_id""")


def origins(tx: Connection, names: Iterable[str]) -> dict[str, LogOrigin]:
    """Return the creation records to store with these logs if they have to be created once more.

    A log is absent if neither an operation of this journal reserved its name nor a recovery recorded it, or if the
    operation has no token.
    """
    return {
        row.name: LogOrigin(row.token, row.epoch, tuple(row.parent_ids), tuple(row.bucket_splits))
        for row in tx.execute(_ORIGINS, {"names": sorted(names)})
    }


def backing_topics(tx: Connection, topic_id: int) -> list[str]:
    """Return the logs of all segments that are not pruned, including sealed segments, by range. Empty for a topic that is being created,
    is deleted or does not exist.
    """
    return [row.backing_topic for row in tx.execute(_LOGS, {"topic_ids": [topic_id]})]


def carrying_subscription(tx: Connection, topic_id: int, subscription: str) -> list[str]:
    """Return, by range, the logs that must have a cursor of the subscription: logs of segments that are not pruned and were active
    after its creation epoch. The subscription may be live or being deleted. Empty if the topic has no such subscription.
    """
    parameters = {"topic_id": topic_id, "subscription": subscription}
    return [row.backing_topic for row in tx.execute(_CARRYING, parameters)]


def made_since_intent(tx: Connection, operation_id: int) -> dict[str, bool]:
    """Return the logs of the segments that were created after the intent of the operation and are not pruned, each with
    True if a parent of its segment is pruned. The reshape that created such a segment gave its log the cursors of the
    topic's live subscriptions and of the applications on the parents.
    """
    rows = tx.execute(_MADE_SINCE, {"operation_id": operation_id})
    return {row.backing_topic: row.has_pruned_parent for row in rows}


_COMPARABLE = text("""
    SELECT t.topic_id
      FROM cleave.topic t
     WHERE t.topic_id > :after
       AND (t.state <> 'deleted' OR t.deleted_at > clock_timestamp() - :deleted_hours * interval '1 hour')
       AND (CAST(:shards AS bigint[]) IS NULL
            OR t.topic_id % CAST(:shard_count AS bigint) = ANY (CAST(:shards AS bigint[])))
     ORDER BY t.topic_id
     LIMIT :limit""")


def comparable_topics(
    tx: Connection, *, limit: int, after: int = 0, deleted_hours: float = 24.0, shards: Shards | None = None
) -> list[int]:
    """Return up to `limit` ids above `after`, ascending, of the topics of the shards (None: all) whose logs are to be
    compared: topics that are not deleted, and topics deleted within `deleted_hours`, because a delayed call may still
    create one of their logs.
    """
    rows = tx.execute(
        _COMPARABLE, {"limit": limit, "after": after, "deleted_hours": deleted_hours, **filter_of(shards)}
    )
    return [row.topic_id for row in rows]


def read_expected_logs(tx: Connection, topic_ids: Collection[int]) -> dict[int, ExpectedLogs]:
    """Return all metadata about the logs of the topics, by topic id. A deleted topic is included; a topic that does
    not exist is absent. Nothing is locked, and several statements read the metadata: a caller that acts on the
    metadata of a topic locks the topic row first.

    A caller that compares logs lists the logs of the data plane before this call. Then each listed log either was
    reserved at the time of this call or is unmanaged.
    """
    parameters = {"topic_ids": list(topic_ids)}
    topics = tx.execute(_TOPICS, parameters).all()
    subscriptions = rows_by_topic(tx.execute(_SUBSCRIPTIONS, parameters))
    logs = rows_by_topic(tx.execute(_LOGS, parameters))
    reserved = rows_by_topic(tx.execute(_RESERVED, parameters))
    pending_deletions = rows_by_topic(tx.execute(_PENDING_DELETIONS, parameters))
    return {
        row.topic_id: _expected_logs(
            row,
            subscriptions[row.topic_id],
            logs[row.topic_id],
            reserved={log.backing_topic: OperationState(log.state) for log in reserved[row.topic_id]},
            pending_deletions=frozenset(log.backing_topic for log in pending_deletions[row.topic_id]),
        )
        for row in topics
    }


def _expected_logs(
    topic: Row[Any],
    subscriptions: Sequence[Row[Any]],
    logs: Sequence[Row[Any]],
    *,
    reserved: Mapping[str, OperationState],
    pending_deletions: frozenset[str],
) -> ExpectedLogs:
    return ExpectedLogs(
        topic_state=topic.state,
        epoch=topic.epoch,
        subscriptions={row.name: row.created_epoch for row in subscriptions if row.state == "live"},
        deleting_subscriptions=frozenset(row.name for row in subscriptions if row.state != "live"),
        has_checkpoints=any(row.kind == "CHECKPOINT" and row.state == "live" for row in subscriptions),
        next_segment_id=topic.next_segment_id,
        logs=tuple(_log(row) for row in logs),
        reserved=reserved,
        pending_deletions=pending_deletions,
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
