"""Deletion entries (table `deletion_entry`): the queue through which all logs are deleted.

An entry is written in the transaction that makes a log superfluous (delete, prune, abort). The garbage collector deletes the
log on the data plane and checks again. An entry closes after the log was absent twice, with so much time in between that no
delayed call can have created the log again. Names of logs are used once (`operation_child`), so a late deletion cannot
remove another log.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, text

from controller.domain.errors import NotFound


@dataclass(frozen=True, slots=True)
class DeletionEntry:
    """A log to delete. In an open entry, `absences` is 1 if the log has been absent since an earlier check, otherwise 0. `attempts`
    counts the calls of `record_failure`. `segment_id` and `operation_id` are None if the log, or its deletion, has none.
    """

    deletion_entry_id: int
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
    """True if a person requested the deletion of the topic with all its messages."""
    drained_for: Sequence[str]
    """Subscriptions that had drained the segment when it was pruned."""


_COLUMNS = """t.deletion_entry_id, t.data_plane, t.backing_topic, t.topic_id, t.segment_id, t.operation_id, t.reason,
              t.absences, t.attempts, t.last_error, t.created_at, t.discards_unread, t.drained_for"""
_ADD = """
    INSERT INTO cleave.deletion_entry (data_plane, backing_topic, topic_id, segment_id, operation_id, reason, discards_unread,
                                  drained_for)
    SELECT :data_plane, log.backing_topic, :topic_id, log.segment_id, CAST(:operation_id AS bigint), :reason, :discards_unread,
           ARRAY(SELECT d.subscription FROM cleave.segment_drain d WHERE :was_pruned
                    AND d.topic_id = CAST(:topic_id AS bigint) AND d.segment_id = log.segment_id ORDER BY 1)
      FROM unnest(CAST(:segment_ids AS bigint[]), CAST(:backing_topics AS text[])) AS log (segment_id, backing_topic)
    ON CONFLICT (data_plane, backing_topic) WHERE closed_at IS NULL DO NOTHING
"""
_CLAIM_DUE = f"""
    WITH due AS MATERIALIZED (
        SELECT d.deletion_entry_id FROM cleave.deletion_entry d
         WHERE d.closed_at IS NULL AND d.not_before <= (SELECT clock_timestamp())
           AND (SELECT w.held_reason IS NULL FROM cleave.topic w WHERE w.topic_id = d.topic_id)
         ORDER BY d.not_before LIMIT :limit FOR UPDATE SKIP LOCKED)
    UPDATE cleave.deletion_entry t SET not_before = clock_timestamp() + make_interval(secs => :hold_seconds)
      FROM due WHERE t.deletion_entry_id = due.deletion_entry_id
 RETURNING {_COLUMNS}
"""
_ABSENT = """
    UPDATE cleave.deletion_entry
       SET absences = CASE WHEN absent_since IS NULL THEN 1
                           WHEN absent_since + make_interval(secs => :apart_seconds) < clock_timestamp() THEN absences + 1 ELSE absences END,
           absent_since = coalesce(absent_since, clock_timestamp()),
           closed_at = CASE WHEN absent_since + make_interval(secs => :apart_seconds) < clock_timestamp()
                            THEN clock_timestamp() END,
           not_before = coalesce(absent_since, clock_timestamp()) + make_interval(secs => :apart_seconds),
           last_error = NULL
     WHERE deletion_entry_id = :deletion_entry_id AND closed_at IS NULL
 RETURNING closed_at IS NOT NULL
"""
_FAILED = """
    UPDATE cleave.deletion_entry
       SET absences = 0, absent_since = NULL, attempts = attempts + 1, last_error = :error_text,
           not_before = clock_timestamp() + make_interval(secs => :delay_seconds)
     WHERE deletion_entry_id = :deletion_entry_id AND closed_at IS NULL
"""
_KEEP = """
    UPDATE cleave.deletion_entry SET closed_at = clock_timestamp(), kept_because = :reason
     WHERE deletion_entry_id = :deletion_entry_id AND closed_at IS NULL
"""
_REASONS_TO_KEEP = text("""
    SELECT DISTINCT operation_id, kept_because FROM cleave.deletion_entry
     WHERE operation_id = ANY (:operation_ids) AND kept_because IS NOT NULL""")
_OPEN = f"""
    SELECT {_COLUMNS} FROM cleave.deletion_entry t
     WHERE t.closed_at IS NULL AND (CAST(:topic_id AS bigint) IS NULL OR t.topic_id = :topic_id)
     ORDER BY t.deletion_entry_id LIMIT :limit
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
    """Queue logs, by segment id, for deletion. Return the number of logs that were not queued already. `reason` and the operation that
    requests the deletion, if there is one, are stored with each entry.

    `discards_unread` is True if a person requested the deletion, so that unread messages do not keep the logs. `was_pruned` is True if
    the segments were recorded as drained; then the entries store which subscriptions had drained them.
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


def claim_due(tx: Connection, *, limit: int, hold_seconds: float) -> list[DeletionEntry]:
    """Claim up to `limit` deletion entries that are due, except those of held topics, and return them by id. No other
    caller gets them for `hold_seconds`.
    """
    rows = tx.execute(text(_CLAIM_DUE), {"limit": limit, "hold_seconds": hold_seconds})
    return sorted((DeletionEntry(**row._mapping) for row in rows), key=lambda entry: entry.deletion_entry_id)


def reasons_to_keep(tx: Connection, operation_ids: Collection[int | None]) -> list[tuple[int, str]]:
    """Return distinct pairs of operation id and reason for the logs of these operations that were kept instead of deleted. None among the
    ids is ignored. Empty if no log was kept.
    """
    ids = sorted({operation_id for operation_id in operation_ids if operation_id is not None})
    return [(row[0], row[1]) for row in tx.execute(_REASONS_TO_KEEP, {"operation_ids": ids})] if ids else []


def record_absence(tx: Connection, deletion_entry_id: int, *, apart_seconds: float) -> bool:
    """Record that a check found the log absent, and delete the last error. Return True if this call closed the
    deletion entry, False if the log must be checked again.

    An entry is closed by an absence more than `apart_seconds` after the first absence. `apart_seconds` must be longer
    than the longest data-plane call. Until then, the entry is due again `apart_seconds` after the first absence.
    Absences before the last `record_failure` do not count. Raises NotFound if the entry is closed already or does not
    exist.
    """
    parameters = {"deletion_entry_id": deletion_entry_id, "apart_seconds": apart_seconds}
    closed = tx.execute(text(_ABSENT), parameters).scalar_one_or_none()
    if closed is None:
        raise NotFound(f"deletion entry {deletion_entry_id} is not open; another process closed it")
    return bool(closed)


def record_failure(tx: Connection, deletion_entry_id: int, error_text: str, *, delay_seconds: float) -> None:
    """Record that the log still exists or could not be checked. Absences start again, and the next attempt follows after the delay.
    Does nothing if the entry is closed.
    """
    parameters = {
        "deletion_entry_id": deletion_entry_id,
        "error_text": error_text,
        "delay_seconds": delay_seconds,
    }
    tx.execute(text(_FAILED), parameters)


def keep(tx: Connection, deletion_entry_id: int, reason: str) -> None:
    """Close the deletion entry and keep the log, for this reason. Does nothing if the entry is closed."""
    tx.execute(text(_KEEP), {"deletion_entry_id": deletion_entry_id, "reason": reason})


def list_open(tx: Connection, topic_id: int | None = None, *, limit: int = 1000) -> list[DeletionEntry]:
    """Return up to `limit` open deletion entries of the topic (None: of all topics), oldest first."""
    rows = tx.execute(text(_OPEN), {"topic_id": topic_id, "limit": limit})
    return [DeletionEntry(**row._mapping) for row in rows]


def next_due(tx: Connection) -> datetime | None:
    """Return the earliest time, which may be in the past, at which an open deletion entry is due. Entries of held topics are ignored; None
    if there is no other entry.
    """
    due: datetime | None = tx.execute(
        text("""
            SELECT min(greatest(d.not_before, d.created_at)) FROM cleave.deletion_entry d
             WHERE d.closed_at IS NULL
               AND (SELECT w.held_reason IS NULL FROM cleave.topic w WHERE w.topic_id = d.topic_id)
        """)
    ).scalar_one()
    return due
