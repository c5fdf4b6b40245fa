"""A fleet in the database, written set-wise: topics, segments and load without the operations that would create them.

For measurements and for query plans, which need many rows; the histories of such topics are empty.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
from sqlalchemy import Connection, text

from controller.clock import to_ms
from controller.store.load.records import CHANGE_SCHEMA, LoadRun, stage_and_merge
from controller.store.postgres.arrow_copy import MergeResult

FILLING_SECONDS = 600.0
"""Time limit of a statement that inserts a large fleet, on a slow machine."""
WARM = 8_000.0
"""Messages per second of a segment that is neither split nor merged under the default policy. With 5,000 each, fewer segments could carry the
load of a topic, and the profile `adaptive` evaluates such a topic again every minute.
"""
HOT = 25_000.0
COLD = 1.0

_TOPICS = text("""
    INSERT INTO cleave.topic (name, namespace, state, next_segment_id)
    SELECT format('topic://bench/n%s/t%s', n / 1000, n), format('bench/n%s', n / 1000), 'live', :segments
      FROM generate_series(1, :topics) AS n
""")
_SEGMENTS = text("""
    INSERT INTO cleave.segment (topic_id, segment_id, range_start, range_end, created_epoch, created_at, backing_topic)
    SELECT t.topic_id, s, 65536 / :segments * s, CASE WHEN s = :segments - 1 THEN 65535 ELSE 65536 / :segments * (s + 1) - 1 END,
           0, clock_timestamp() - interval '1 day', format('persistent://%s-%s', t.topic_id, s)
      FROM cleave.topic t CROSS JOIN generate_series(0, :segments - 1) AS s
""")
_LOADS = text("""
    INSERT INTO cleave.segment_load (topic_id, segment_id, msg_rate_in, byte_rate_in, msg_rate_out, byte_rate_out, source, modified_at)
    SELECT topic_id, segment_id, :rate, :rate * 100, :rate, :rate * 100, 'broker-' || topic_id % 10, clock_timestamp() - interval '1 hour'
      FROM cleave.segment
""")
_SOURCES = text("""
    INSERT INTO cleave.load_source (source, observed_at) SELECT 'broker-' || n, clock_timestamp() FROM generate_series(0, 9) AS n
""")


def insert_fleet(tx: Connection, topics: int, segments: int, rate: float = WARM) -> None:
    """Insert `topics` live topics of `segments` equal segments, each with a fresh load record of that rate. 100,000 topics need a store
    with more than the usual time for a statement: `FILLING_SECONDS`.
    """
    tx.execute(_TOPICS, {"topics": topics, "segments": segments})
    tx.execute(_SEGMENTS, {"segments": segments})
    tx.execute(_SOURCES)
    tx.execute(_LOADS, {"rate": rate})


def analyze(tx: Connection) -> None:
    """Collect statistics for the planner, as autovacuum would."""
    tx.execute(text("ANALYZE cleave.topic, cleave.segment, cleave.segment_load, cleave.evaluation"))


def change_loads(tx: Connection, run_id: str, every: int) -> MergeResult:
    """Merge an aggregation run over every `every`-th topic: a third becomes hot, a third cold, a third stays warm."""
    rows = tx.execute(
        text("""
            SELECT topic_id, segment_id, source, row_version, (topic_id / :every) % 3 AS turn
              FROM cleave.segment_load WHERE topic_id % :every = 0
        """),
        {"every": every},
    ).all()
    now = datetime.now(UTC)
    now_ms = to_ms(now)
    rates = {0: HOT, 1: COLD, 2: WARM + 500.0}
    columns = {
        "topic_id": [row.topic_id for row in rows],
        "segment_id": [row.segment_id for row in rows],
        "msg_rate_in": [rates[row.turn] for row in rows],
        "byte_rate_in": [rates[row.turn] * 100 for row in rows],
        "msg_rate_out": [rates[row.turn] for row in rows],
        "byte_rate_out": [rates[row.turn] * 100 for row in rows],
        "source": [row.source for row in rows],
        "modified_at_ms": [now_ms for _ in rows],
        "cold_since_ms": [to_ms(now - timedelta(minutes=30)) if row.turn == 1 else None for row in rows],
        "silent_since_ms": [None for _ in rows],
        "seen_row_version": [row.row_version for row in rows],
    }
    sources = pa.table({"source": [f"broker-{n}" for n in range(10)], "observed_at_ms": [now_ms] * 10})
    run = LoadRun(run_id, now, "benchmark", len(rows), len(rows))
    return stage_and_merge(tx, run, pa.table(columns, schema=CHANGE_SCHEMA), sources)
