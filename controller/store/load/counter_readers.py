"""Records the readers of counters and their clocks (`cleave.load_reader`).

One offset per reader converts its times to the time of the database. If the offset changes, one of the two clocks was set. Then
another reader begins, and its samples are not compared with those of the previous reader.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from secrets import token_hex

from sqlalchemy import Connection, text

from controller.domain.counter_rates import MAX_SOURCE_LENGTH
from controller.store.postgres.clock import Ahead

MOST_APART_MS = 1_000
"""Milliseconds by which two clocks may drift apart, and by which a call may delay the comparison. After a greater change, a clock
counts as set.
"""

_RECORD = text("""
    WITH old AS (DELETE FROM cleave.load_reader WHERE seen_at < clock_timestamp() - interval '1 day' AND name <> :name)
    INSERT INTO cleave.load_reader AS r (name, reader, topic_prefix, data_planes, interval_seconds, clock_ahead_ms, reader_ahead_ms)
    VALUES (:name, :reader, :topic_prefix, :data_planes, :interval_seconds, :clock_ahead_ms, :ahead_ms)
    ON CONFLICT (name) DO UPDATE
       SET topic_prefix = excluded.topic_prefix, data_planes = excluded.data_planes, interval_seconds = excluded.interval_seconds,
           clock_ahead_ms = excluded.clock_ahead_ms, seen_at = excluded.seen_at,
           reader = CASE WHEN abs(excluded.reader_ahead_ms - r.reader_ahead_ms) > :most_apart_ms THEN excluded.reader ELSE r.reader END,
           reader_ahead_ms = CASE WHEN abs(excluded.reader_ahead_ms - r.reader_ahead_ms) > :most_apart_ms THEN excluded.reader_ahead_ms
                                  ELSE r.reader_ahead_ms END
    RETURNING reader, reader_ahead_ms
""")
_DELETE = text("DELETE FROM cleave.load_reader WHERE name = :name")


@dataclass(frozen=True, slots=True)
class Reader:
    """A reader of counters. `name` is unique: the name of its collector or broker, `@` and a random suffix. `ahead_ms` (negative: behind)
    is subtracted from the times of its samples.
    """

    name: str
    ahead_ms: int


def record(
    tx: Connection,
    name: str,
    ahead: Ahead,
    *,
    clock_ahead_ms: int,
    topic_prefix: str = "",
    data_planes: Sequence[str] = (),
    interval_seconds: float = 60.0,
) -> Reader:
    """Record that the collector or broker `name` has read counters by a clock that is `ahead`, and delete other readers that were not
    seen for a day. Return the reader of these samples: the stored reader with its first offset, or another reader with the present offset
    if none is stored or the offset has changed by more than `MOST_APART_MS` plus its uncertainty.

    The views show `clock_ahead_ms`, the offset of the wall clock on that machine, and the remaining parameters.
    """
    row = tx.execute(
        _RECORD,
        {
            "name": name,
            "reader": f"{name[: MAX_SOURCE_LENGTH // 2]}@{token_hex(4)}",
            "topic_prefix": topic_prefix,
            "data_planes": list(data_planes),
            "interval_seconds": interval_seconds,
            "clock_ahead_ms": clock_ahead_ms,
            "ahead_ms": ahead.ms,
            "most_apart_ms": MOST_APART_MS + ahead.unsure_ms,
        },
    ).one()
    return Reader(row.reader, row.reader_ahead_ms)


def delete(tx: Connection, name: str) -> None:
    """Delete the reader of the collector or broker `name`, which has ended. Does nothing if there is none."""
    tx.execute(_DELETE, {"name": name})
