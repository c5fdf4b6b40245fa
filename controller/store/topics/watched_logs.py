"""Lists the logs that are watched for load and consumers: logs of active segments, and of sealed segments that may still be read."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import Connection, text

SEALED_FOR_SECONDS = 600.0
"""Seconds after the seal for which load collectors still watch a segment, because consumers still read it."""


@dataclass(frozen=True, slots=True)
class WatchedLog:
    """A log to sample."""

    topic_id: int
    segment_id: int
    data_plane: str
    backing_topic: str


def watched_logs(
    tx: Connection,
    *,
    prefix: str = "",
    sealed_for_seconds: float,
    planes: Collection[str] | None = None,
    logs: Collection[str] | None = None,
) -> list[WatchedLog]:
    """Return the logs of the segments of live topics whose topic names begin with `prefix`, by topic and segment.

    Sealed segments are included for `sealed_for_seconds` after their seal, unless they are pruned. `planes` restricts
    the result to these data planes, `logs` to these backing topics; None does not restrict the result.
    """
    rows = tx.execute(
        text("""
            SELECT s.topic_id, s.segment_id, t.data_plane, s.backing_topic
              FROM cleave.segment s JOIN cleave.topic t USING (topic_id)
             WHERE t.state = 'live' AND starts_with(t.name, :prefix) AND s.pruned_epoch IS NULL
               AND (s.state = 'ACTIVE' OR s.sealed_at > clock_timestamp() - make_interval(secs => :seconds))
               AND (CAST(:planes AS text[]) IS NULL OR t.data_plane = ANY (:planes))
               AND (CAST(:logs AS text[]) IS NULL OR s.backing_topic = ANY (:logs))
             ORDER BY s.topic_id, s.segment_id
        """),
        {
            "prefix": prefix,
            "seconds": sealed_for_seconds,
            "planes": None if planes is None else sorted(planes),
            "logs": None if logs is None else sorted(logs),
        },
    )
    return [WatchedLog(*row) for row in rows]
