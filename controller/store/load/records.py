"""Load records: what the aggregation starts from, and how its result gets in.

The loader reads the baseline (records, freshness of sources, thresholds in force) as Arrow tables, computes, and
hands back the rows that changed: COPY into the inbox, then one compare-and-set merge by the owner's function, all
in one transaction. Runs as `cleave_spark_loader`, which can do nothing else. What a rate is, is not known here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Connection, text

from controller.store.load import sketches
from controller.store.postgres.arrow_copy import MergeResult, append, fetch

_RATES = [(name, pa.float64()) for name in ("msg_rate_in", "byte_rate_in", "msg_rate_out", "byte_rate_out")]
_IDS = [("topic_id", pa.int64()), ("segment_id", pa.int64())]
_INSTANTS = [("modified_at_ms", pa.int64()), ("cold_since_ms", pa.int64()), ("silent_since_ms", pa.int64())]

RECORD_SCHEMA = pa.schema([*_IDS, *_RATES, ("source", pa.string()), *_INSTANTS, ("row_version", pa.int64())])
"""A stored load record; instants in milliseconds since the Unix epoch, rates per second."""

SOURCE_SCHEMA = pa.schema([("source", pa.string()), ("observed_at_ms", pa.int64())])
"""When a source was last heard of."""

HEARD_SCHEMA = pa.schema([*SOURCE_SCHEMA, ("set_aside", pa.int64()), ("topic_id", pa.int64())])
"""A source in a run's window: its last sound sample (null: it has none), how many are excluded, and a topic of these."""

THRESHOLD_SCHEMA = pa.schema(
    [
        ("topic_id", pa.int64()),
        *((f"{side}_{name}", kind) for side in ("split", "merge") for name, kind in _RATES),
        ("load_change_threshold", pa.float64()),
        ("strict_pulsar", pa.bool_()),
    ]
)
"""Thresholds in force for a topic, per segment and second, and whether its records follow Pulsar's rule alone."""

MEMORY_SCHEMA = pa.schema([("topic_id", pa.int64()), ("tick_seconds", pa.float64())])
"""How long a tick of the load memory is, for each topic whose profile looks back."""

TICK_SCHEMA = pa.schema([*_IDS, *_RATES, ("tick_seconds", pa.float64())])
"""The rates of one window, for the memory."""

SKETCH_SCHEMA = pa.schema(
    [
        *_IDS,
        ("producers", pa.int64()),
        ("messages", pa.int64()),
        ("bins", pa.list_(pa.int64())),
        ("set_aside", pa.int64()),
    ]
)
"""What producers counted of a segment's keys: how many producers, how many messages in all and in each bin of its range, and how many
landed rows are set aside, which are in none of these.
"""

STAGED_SKETCH_SCHEMA = pa.schema([one for one in SKETCH_SCHEMA if one.name not in ("messages", "set_aside")])
"""The columns of SKETCH_SCHEMA that are written."""

CHANGE_SCHEMA = pa.schema(
    [*_IDS, *_RATES, ("source", pa.string()), *_INSTANTS, ("seen_row_version", pa.int64())]
)
"""A record to write; `seen_row_version` is that of the record it was computed from, 0 where there was none."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """What one aggregation run starts from; `watermark` is the end of the last window merged."""

    watermark: datetime | None
    records: pa.Table
    sources: pa.Table
    thresholds: pa.Table
    memories: pa.Table = field(default_factory=MEMORY_SCHEMA.empty_table)


@dataclass(frozen=True, slots=True)
class LoadRun:
    """One aggregation run; `run_id` makes it idempotent, `window_end` is its watermark."""

    run_id: str
    window_end: datetime
    engine: str
    samples: int
    segments: int
    quarantined: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class RunSketches:
    """What producers counted, as STAGED_SKETCH_SCHEMA; it plays a part in decisions for `fresh_seconds`."""

    rows: pa.Table
    fresh_seconds: float


def watermark(tx: Connection) -> datetime | None:
    """End of the last window merged; None before the first."""
    found: datetime | None = tx.execute(text("SELECT max(window_end) FROM cleave.load_run")).scalar_one()
    return found


def baseline(tx: Connection) -> Baseline:
    """All load records, sources, thresholds and memories in force, in the schemas of this module."""
    return Baseline(
        watermark(tx),
        fetch(tx, "cleave.segment_load", RECORD_SCHEMA),
        fetch(tx, "cleave.load_source", SOURCE_SCHEMA),
        fetch(tx, "cleave.threshold_in_force", THRESHOLD_SCHEMA),
        fetch(tx, "cleave.memory_in_force", MEMORY_SCHEMA),
    )


def ticks(rates: pa.Table, memories: pa.Table) -> pa.Table:
    """Of a run's rates those that are remembered, as TICK_SCHEMA. A policy whose ticks have no length remembers nothing."""
    lasting = memories.filter(pc.is_finite(memories["tick_seconds"]))
    remembered = rates.select(TICK_SCHEMA.names[:-1]).join(lasting, "topic_id", join_type="inner")
    return remembered.select(TICK_SCHEMA.names)


def stage_and_merge(
    tx: Connection,
    run: LoadRun,
    changes: pa.Table,
    heard: pa.Table,
    remembered: pa.Table | None = None,
    counted: RunSketches | None = None,
) -> MergeResult:
    """Writes a run's result: `changes` as CHANGE_SCHEMA, `heard` as SOURCE_SCHEMA, `remembered` as `ticks` gives it, and what
    producers counted.

    A run that was merged before, or whose window is not beyond the watermark, changes nothing.
    """
    append(tx, "staging.load_row", run.run_id, changes, CHANGE_SCHEMA)
    append(tx, "staging.source_row", run.run_id, heard, SOURCE_SCHEMA)
    if remembered is not None:
        append(tx, "staging.tick_row", run.run_id, remembered, TICK_SCHEMA)
    row = tx.execute(
        text(
            "SELECT * FROM cleave.merge_load(:run_id, :window_end, :engine, :samples, :segments, :quarantined)"
        ),
        {
            "run_id": run.run_id,
            "window_end": run.window_end,
            "engine": run.engine,
            "samples": run.samples,
            "segments": run.segments,
            "quarantined": list(run.quarantined),
        },
    ).one()
    if row.applied and counted is not None and counted.rows.num_rows:
        append(tx, "staging.sketch_row", run.run_id, counted.rows, STAGED_SKETCH_SCHEMA)
        sketches.merge(tx, run.run_id, fresh_seconds=counted.fresh_seconds)
    return MergeResult(row.written, row.outrun, row.applied)
