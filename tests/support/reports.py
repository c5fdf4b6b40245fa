"""Load reports as an aggregation run computes and writes them."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pyarrow as pa
from sqlalchemy import Connection, text

from controller.store.load.records import CHANGE_SCHEMA, LoadRun, stage_and_merge
from controller.store.postgres.arrow_copy import MergeResult

_SEEN = text("""
    SELECT segment_id, row_version FROM cleave.segment_load WHERE topic_id = :topic_id
""")


def milliseconds(instant: datetime) -> int:
    """Return the milliseconds since the Unix epoch."""
    return round(instant.timestamp() * 1000)


def report_load(
    tx: Connection,
    topic_id: int,
    rates: Mapping[int, float],
    *,
    source: str = "broker-1",
    cold_for: timedelta | None = None,
    silent_for: timedelta | None = None,
    observed_at: datetime | None = None,
) -> MergeResult:
    """Store messages per second in and out of each segment, with bytes at a hundredth of their thresholds' scale.

    `cold_for`: time for which the segments have been cold; `silent_for`: time for which no source has reported them.
    """
    now = datetime.now(UTC)
    row_versions = {row.segment_id: row.row_version for row in tx.execute(_SEEN, {"topic_id": topic_id})}
    rows = [
        {
            "topic_id": topic_id,
            "segment_id": segment_id,
            "msg_rate_in": rate,
            "byte_rate_in": rate * 100,
            "msg_rate_out": rate,
            "byte_rate_out": rate * 100,
            "source": source,
            "modified_at_ms": milliseconds(now),
            "cold_since_ms": None if cold_for is None else milliseconds(now - cold_for),
            "silent_since_ms": None if silent_for is None else milliseconds(now - silent_for),
            "seen_row_version": row_versions.get(segment_id, 0),
        }
        for segment_id, rate in rates.items()
    ]
    sources = pa.table({"source": [source], "observed_at_ms": [milliseconds(observed_at or now)]})
    run = LoadRun(f"run-{secrets.token_hex(6)}", now, "test", len(rows), len(rows))
    return stage_and_merge(tx, run, pa.Table.from_pylist(rows, CHANGE_SCHEMA), sources)
