"""Reads the baseline of an aggregation, and writes its result into the load records.

The loader reads the baseline (load records, times of sources, thresholds in force) as Arrow tables and computes. Then, in one
transaction, it copies the changed rows into staging tables and calls a function of the owner that merges the rows whose records
have not changed since. The loader runs as `cleave_spark_loader`, which has no other rights. This module does not compute rates.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Connection, text

from controller.store.load import sketches
from controller.store.postgres.arrow_copy import MergeResult, append, fetch
from controller.store.set_aside import SetAside

_MERGED = text("SELECT run_id, window_end FROM cleave.load_run WHERE run_id = ANY (:run_ids)")
_RATES = [(name, pa.float64()) for name in ("msg_rate_in", "byte_rate_in", "msg_rate_out", "byte_rate_out")]
_IDS = [("topic_id", pa.int64()), ("segment_id", pa.int64())]
_INSTANTS = [("modified_at_ms", pa.int64()), ("cold_since_ms", pa.int64()), ("silent_since_ms", pa.int64())]

RECORD_SCHEMA = pa.schema([*_IDS, *_RATES, ("source", pa.string()), *_INSTANTS, ("row_version", pa.int64())])
"""A stored load record. Times are milliseconds since the Unix epoch; rates are per second."""

SOURCE_SCHEMA = pa.schema([("source", pa.string()), ("observed_at_ms", pa.int64())])
"""A source of samples, and the time of its last sample."""

HEARD_SCHEMA = pa.schema([*SOURCE_SCHEMA, ("set_aside", pa.int64()), ("topic_id", pa.int64())])
"""A source in the window of a run: the time of its last valid sample (null: none), the number of skipped samples, and a topic of these."""

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
"""Length of a tick of the load memory, for each topic whose profile uses past load."""

TICK_SCHEMA = pa.schema([*_IDS, *_RATES, ("tick_seconds", pa.float64())])
"""Rates of one window, for the load memory."""

SKETCH_SCHEMA = pa.schema(
    [
        *_IDS,
        ("producers", pa.int64()),
        ("messages", pa.int64()),
        ("bins", pa.list_(pa.int64())),
        ("set_aside", pa.int64()),
    ]
)
"""Key counts that producers reported for a segment: the number of producers, the messages in total and in each bin of its range, and the
number of rows that were skipped and are not counted.
"""

STAGED_SKETCH_SCHEMA = pa.schema(
    [column for column in SKETCH_SCHEMA if column.name not in ("messages", "set_aside")]
)
"""The columns of SKETCH_SCHEMA that are written."""

CHANGE_SCHEMA = pa.schema(
    [*_IDS, *_RATES, ("source", pa.string()), *_INSTANTS, ("seen_row_version", pa.int64())]
)
"""A load record to write. `seen_row_version` is the row version of the record from which it was computed, or 0 if there was none."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """Inputs of one aggregation run. `watermark` is the end of the last merged window; None before the first. The tables have
    RECORD_SCHEMA, SOURCE_SCHEMA, THRESHOLD_SCHEMA and MEMORY_SCHEMA.
    """

    watermark: datetime | None
    records: pa.Table
    sources: pa.Table
    thresholds: pa.Table
    memories: pa.Table = field(default_factory=MEMORY_SCHEMA.empty_table)


@dataclass(frozen=True, slots=True)
class LoadRun:
    """One aggregation run. `run_id` makes the merge idempotent; `window_end` is the watermark of the run. `samples` and `segments` are the
    numbers of samples read and of their segments; `quarantined` holds the paths of files that were quarantined or left out.
    """

    run_id: str
    window_end: datetime
    engine: str
    samples: int
    segments: int
    quarantined: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class RunSketches:
    """Key counts of a run, as STAGED_SKETCH_SCHEMA, and the counts that are left out. Decisions use the counts for `fresh_seconds`."""

    rows: pa.Table
    fresh_seconds: float
    set_aside: Sequence[SetAside] = ()


def watermark(tx: Connection) -> datetime | None:
    """Return the end of the last merged window. None before the first. Runs that were applied later than the present
    time are ignored: the clock of the database went back, and the next merge deletes them.
    """
    window_end: datetime | None = tx.execute(
        text("SELECT max(window_end) FROM cleave.load_run WHERE applied_at <= clock_timestamp()")
    ).scalar_one()
    return window_end


def present_after_step_back(tx: Connection) -> datetime | None:
    """Return the present time if the clock of the database went back behind the last merge. None if it did not."""
    now: datetime | None = tx.execute(
        text(
            "SELECT now FROM clock_timestamp() AS now WHERE EXISTS (SELECT FROM cleave.load_run WHERE applied_at > now)"
        )
    ).scalar_one_or_none()
    return now


def baseline(tx: Connection) -> Baseline:
    """Return all load records and sources, and the thresholds and tick lengths in force, in the schemas of this module. The tables are read
    one after the other, so a concurrent change may be in one and not in another.
    """
    return Baseline(
        watermark(tx),
        fetch(tx, "cleave.segment_load", RECORD_SCHEMA),
        fetch(tx, "cleave.load_source", SOURCE_SCHEMA),
        fetch(tx, "cleave.threshold_in_force", THRESHOLD_SCHEMA),
        fetch(tx, "cleave.memory_in_force", MEMORY_SCHEMA),
    )


def ticks(rates: pa.Table, memories: pa.Table) -> pa.Table:
    """Return the rows of `rates` that go into the load memory, as TICK_SCHEMA, in no order. `rates` has the columns
    of TICK_SCHEMA except `tick_seconds`, which comes from `memories` (MEMORY_SCHEMA). Rows of a topic that has no
    finite tick length in `memories` are left out.
    """
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
    """Write the result of an aggregation run in this transaction: the load records to change, `changes`
    (CHANGE_SCHEMA); the sources with the times of their last samples, `heard` (SOURCE_SCHEMA); the rates for the load
    memory, `remembered`, as returned by `ticks` (None: no rates); and the key counts `counted` (None: no key counts).
    Return the number of written load records, and the number of changes that were skipped (`outrun`). Waits for a
    concurrent merge.

    A change is skipped if the row version of the stored record is no longer the `seen_row_version` of the change,
    because the record was written after the run read its baseline, or if the segment was pruned. If a run with this
    id was merged before, or if `window_end` is not later than the watermark (the end of the last merged window),
    nothing is written, not even the key counts, and `applied` is False.

    If the clock of the database went back, runs that were applied later than the present time are deleted, and times
    of records and sources after `window_end` become `window_end`.

    Raises KeyError if a table lacks a column of its schema; ArrowInvalid for a value that does not fit its type; and
    DBAPIError, which `Store.transaction` translates, for instance into LostRace if a concurrent merge lasts too long.
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


def merged(tx: Connection, run_ids: Collection[str]) -> set[tuple[str, datetime]]:
    """Return those of the runs that were merged, each as its id and the end of its window. At most one run per window
    is merged. Only the rates of merged runs belong into the history. The role of a loader suffices.
    """
    return {(row.run_id, row.window_end) for row in tx.execute(_MERGED, {"run_ids": list(run_ids)})}
