"""Stores unmanaged logs: logs that have the name of a segment and that this journal must not delete, as last compared."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, text

from controller.domain.log_origin import LogOrigin

_REPLACE = text("""
    WITH given AS (
        SELECT * FROM jsonb_to_recordset(CAST(:logs AS jsonb)) AS g (
            topic_id bigint, backing_topic text, segment_id bigint, reason text, token text, epoch bigint, unread bigint))
    , gone AS (
        DELETE FROM cleave.unmanaged_log f
         WHERE f.data_plane = :data_plane AND f.topic_id = ANY (:topic_ids)
           AND f.backing_topic NOT IN (SELECT backing_topic FROM given))
    INSERT INTO cleave.unmanaged_log AS f (data_plane, backing_topic, topic_id, segment_id, reason, token, epoch, unread)
    SELECT :data_plane, backing_topic, topic_id, segment_id, reason, token, epoch, unread FROM given
    ON CONFLICT (data_plane, backing_topic) DO UPDATE
       SET topic_id = excluded.topic_id, reason = excluded.reason, unread = excluded.unread, seen_at = clock_timestamp()""")
_NOTE = text("""
    INSERT INTO cleave.unmanaged_log AS f (data_plane, backing_topic, topic_id, segment_id, reason, token, epoch, unread)
    VALUES (:data_plane, :backing_topic, :topic_id, :segment_id, :reason, :token, :epoch, :unread)
    ON CONFLICT (data_plane, backing_topic) DO UPDATE
       SET reason = excluded.reason, unread = excluded.unread, seen_at = clock_timestamp()""")


@dataclass(frozen=True, slots=True)
class UnmanagedLog:
    """An unmanaged log that is kept, and the reason. `origin` is the creation record that the log carries; None without a record.
    `unread` is the largest number of unread messages of any subscription; None if not known.
    """

    topic_id: int
    backing_topic: str
    segment_id: int | None
    reason: str
    origin: LogOrigin | None
    unread: int | None

    def to_document(self) -> dict[str, object]:
        """Return the columns of its row."""
        return {
            "topic_id": self.topic_id,
            "backing_topic": self.backing_topic,
            "segment_id": self.segment_id,
            "reason": self.reason,
            "token": self.origin and self.origin.token,
            "epoch": self.origin and self.origin.epoch,
            "unread": self.unread,
        }


def replace(
    tx: Connection, data_plane: str, topic_ids: Collection[int], logs: Sequence[UnmanagedLog]
) -> None:
    """Store `logs` as the unmanaged logs of these topics on the data plane, and delete the rows of these topics for
    all other logs. If a log is stored already, its topic, reason and number of unread messages are replaced, and its
    segment and creation record are kept.
    """
    documents = json.dumps([log.to_document() for log in logs])
    parameters = {"data_plane": data_plane, "topic_ids": list(topic_ids), "logs": documents}
    tx.execute(_REPLACE, parameters)


def note(tx: Connection, data_plane: str, log: UnmanagedLog) -> None:
    """Store an unmanaged log that a deletion has kept. If the log is stored already, replace its reason and number of unread messages."""
    tx.execute(_NOTE, {"data_plane": data_plane, **log.to_document()})
