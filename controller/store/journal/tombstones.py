"""Tombstones: the queue of logs to delete, and the only way a log is ever deleted.

A row is written in the transaction that makes a log superfluous (delete, prune, abort). Whoever works the queue
deletes the log on the data plane and looks again; a tombstone closes after two absences far enough apart that
no delayed call can have brought the log back in between. Log names are never used twice (`operation_child`),
so a late deletion cannot meet a new log.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, text

from controller.domain.errors import NotFound


@dataclass(frozen=True, slots=True)
class Tombstone:
    """One log that has to go. `absences` counts how often in a row it was found gone."""

    tombstone_id: int
    data_plane: str
    backing_topic: str
    topic_id: int
    segment_id: int | None
    operation_id: int | None
    reason: str
    absences: int
    attempts: int
    last_error: str | None
    created_at: datetime
    discards_unread: bool
    """A person requested the deletion of the topic with everything in it."""
    drained_for: Sequence[str]
    """Subscriptions recorded to have read the log to its end when its segment was pruned."""


_COLUMNS = """t.tombstone_id, t.data_plane, t.backing_topic, t.topic_id, t.segment_id, t.operation_id, t.reason,
              t.absences, t.attempts, t.last_error, t.created_at, t.discards_unread, t.drained_for"""
_ADD = """
    INSERT INTO cleave.tombstone (data_plane, backing_topic, topic_id, segment_id, operation_id, reason, discards_unread,
                                  drained_for)
    SELECT :data_plane, log.backing_topic, :topic_id, log.segment_id, CAST(:operation_id AS bigint), :reason, :discards_unread,
           ARRAY(SELECT d.subscription FROM cleave.segment_drain d WHERE :was_pruned
                    AND d.topic_id = CAST(:topic_id AS bigint) AND d.segment_id = log.segment_id ORDER BY 1)
      FROM unnest(CAST(:segment_ids AS bigint[]), CAST(:backing_topics AS text[])) AS log (segment_id, backing_topic)
    ON CONFLICT (data_plane, backing_topic) WHERE closed_at IS NULL DO NOTHING
"""
_CLAIM_DUE = f"""
    WITH due AS MATERIALIZED (
        SELECT d.tombstone_id FROM cleave.tombstone d
         WHERE d.closed_at IS NULL AND d.not_before <= (SELECT clock_timestamp())
           AND (SELECT w.held_reason IS NULL FROM cleave.topic w WHERE w.topic_id = d.topic_id)
         ORDER BY d.not_before LIMIT :limit FOR UPDATE SKIP LOCKED)
    UPDATE cleave.tombstone t SET not_before = clock_timestamp() + make_interval(secs => :hold_seconds)
      FROM due WHERE t.tombstone_id = due.tombstone_id
 RETURNING {_COLUMNS}
"""
_ABSENT = """
    UPDATE cleave.tombstone
       SET absences = CASE WHEN absent_since IS NULL THEN 1
                           WHEN absent_since + make_interval(secs => :apart_seconds) < clock_timestamp() THEN absences + 1 ELSE absences END,
           absent_since = coalesce(absent_since, clock_timestamp()),
           closed_at = CASE WHEN absent_since + make_interval(secs => :apart_seconds) < clock_timestamp()
                            THEN clock_timestamp() END,
           not_before = coalesce(absent_since, clock_timestamp()) + make_interval(secs => :apart_seconds),
           last_error = NULL
     WHERE tombstone_id = :tombstone_id AND closed_at IS NULL
 RETURNING closed_at IS NOT NULL
"""
_FAILED = """
    UPDATE cleave.tombstone
       SET absences = 0, absent_since = NULL, attempts = attempts + 1, last_error = :error_text,
           not_before = clock_timestamp() + make_interval(secs => :delay_seconds)
     WHERE tombstone_id = :tombstone_id AND closed_at IS NULL
"""
_KEEP = """
    UPDATE cleave.tombstone SET closed_at = clock_timestamp(), kept_because = :reason
     WHERE tombstone_id = :tombstone_id AND closed_at IS NULL
"""
_REASONS_TO_KEEP = text("""
    SELECT DISTINCT operation_id, kept_because FROM cleave.tombstone
     WHERE operation_id = ANY (:operation_ids) AND kept_because IS NOT NULL""")
_OPEN = f"""
    SELECT {_COLUMNS} FROM cleave.tombstone t
     WHERE t.closed_at IS NULL AND (CAST(:topic_id AS bigint) IS NULL OR t.topic_id = :topic_id)
     ORDER BY t.tombstone_id LIMIT :limit
"""


def add(
    tx: Connection,
    *,
    data_plane: str,
    topic_id: int,
    backing_topics: Mapping[int, str],
    reason: str,
    operation_id: int | None = None,
    discards_unread: bool = False,
    was_pruned: bool = False,
) -> int:
    """Queues logs, by segment id, for deletion; returns how many were not queued already.

    `discards_unread`: a person requested it, so unread messages do not keep the logs. `was_pruned`: the segments were recorded
    as read to their end.
    """
    parameters = {
        "data_plane": data_plane,
        "topic_id": topic_id,
        "operation_id": operation_id,
        "reason": reason,
        "discards_unread": discards_unread,
        "was_pruned": was_pruned,
        "segment_ids": list(backing_topics),
        "backing_topics": list(backing_topics.values()),
    }
    return tx.execute(text(_ADD), parameters).rowcount


def claim_due(tx: Connection, *, limit: int, hold_seconds: float) -> list[Tombstone]:
    """Up to `limit` tombstones that are due; nobody else gets them for `hold_seconds`."""
    rows = tx.execute(text(_CLAIM_DUE), {"limit": limit, "hold_seconds": hold_seconds})
    return sorted((_tombstone(row) for row in rows), key=lambda tombstone: tombstone.tombstone_id)


def reasons_to_keep(tx: Connection, operation_ids: Collection[int | None]) -> list[tuple[int, str]]:
    """Return the operations of which a log had to be kept, each with the reasons."""
    ids = sorted({one for one in operation_ids if one is not None})
    return [(row[0], row[1]) for row in tx.execute(_REASONS_TO_KEEP, {"operation_ids": ids})] if ids else []


def record_absence(tx: Connection, tombstone_id: int, *, apart_seconds: float) -> bool:
    """The log was not there; True when this closed the tombstone.

    It takes two absences more than `apart_seconds` (over the longest data-plane call) apart. Raises NotFound
    when the tombstone is closed already.
    """
    parameters = {"tombstone_id": tombstone_id, "apart_seconds": apart_seconds}
    closed = tx.execute(text(_ABSENT), parameters).scalar_one_or_none()
    if closed is None:
        raise NotFound(f"tombstone {tombstone_id} is not open; somebody else closed it")
    return bool(closed)


def record_failure(tx: Connection, tombstone_id: int, error_text: str, *, delay_seconds: float) -> None:
    """The log is still there or could not be looked at: absences start again, the next try after the delay."""
    parameters = {"tombstone_id": tombstone_id, "error_text": error_text, "delay_seconds": delay_seconds}
    tx.execute(text(_FAILED), parameters)


def keep(tx: Connection, tombstone_id: int, reason: str) -> None:
    """Close the tombstone without a deletion: the log is kept for this reason."""
    tx.execute(text(_KEEP), {"tombstone_id": tombstone_id, "reason": reason})


def list_open(tx: Connection, topic_id: int | None = None, *, limit: int = 1000) -> list[Tombstone]:
    """Tombstones not closed, oldest first."""
    return [_tombstone(row) for row in tx.execute(text(_OPEN), {"topic_id": topic_id, "limit": limit})]


def _tombstone(row: Row[Any]) -> Tombstone:
    return Tombstone(**row._mapping)


def next_due(tx: Connection) -> datetime | None:
    """The earliest instant at which an open tombstone may be worked on; None when there is none, or its topic is held."""
    due: datetime | None = tx.execute(
        text("""
            SELECT min(greatest(d.not_before, d.created_at)) FROM cleave.tombstone d
             WHERE d.closed_at IS NULL
               AND (SELECT w.held_reason IS NULL FROM cleave.topic w WHERE w.topic_id = d.topic_id)
        """)
    ).scalar_one()
    return due
