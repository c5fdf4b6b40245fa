"""Computes the load records that a run writes: applies the rule `domain.load_record_rule.next_record` to each segment
with rates, and marks silent segments.

If a source reported samples, but none of a segment, the segment's record is marked as silent, so that the
record does not look as fresh as the source. Records of topics without thresholds are not changed, because
such topics are not live.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from controller.domain.load_record import METRICS, LoadRecord, LoadStats, LoadThresholds
from controller.domain.load_record_rule import next_record
from controller.domain.load_window import LoadWindow
from controller.landing.history import with_rates
from controller.store.load.records import CHANGE_SCHEMA, Baseline

_KEY = ["topic_id", "segment_id"]
_COLUMNS = [
    *_KEY,
    *METRICS,
    "observed_at_ms",
    "source",
    *(f"{metric}_was" for metric in METRICS),
    *(
        "modified_at_ms_was",
        "cold_since_ms_was",
        "observed_at_ms_was",
        "source_was",
        "silent_since_ms_was",
        "row_version_was",
    ),
]
_BATCH_ROWS = 65_536
"""Number of rows whose values are converted to Python objects at a time."""


_Limits = Mapping[int, tuple[LoadThresholds, float, bool]]
"""Limits by topic: thresholds, the relative change that rewrites a record, and whether only Pulsar's rule
applies.
"""


def record_changes(
    rates: pa.Table, last_samples: pa.Table, baseline: Baseline, window: LoadWindow
) -> pa.Table:
    """Return the load records to write, as CHANGE_SCHEMA: the records that the rates change, and the records of
    segments that become silent. `rates` and `last_samples` (the last sample of each source) are the results of the
    engine. `baseline` holds the stored records and the thresholds. Topics without thresholds in `baseline` are left
    out, because they are not live. Nothing is written. Raises InvalidInput for a rate that is negative or not finite.
    """
    current_rates, stored_records = with_rates(rates), _observed(baseline)
    limits = {row["topic_id"]: _limits(row) for row in baseline.thresholds.to_pylist()}
    previous = stored_records.rename_columns(
        [name if name in _KEY else f"{name}_was" for name in stored_records.column_names]
    )
    rows = current_rates.join(previous, _KEY, join_type="left outer").select(_COLUMNS)
    written = [_records_to_write(batch, limits) for batch in rows.to_batches(max_chunksize=_BATCH_ROWS)]
    return pa.concat_tables(
        [*written, _silent_records(stored_records, current_rates, last_samples, baseline, window)]
    )


def _observed(baseline: Baseline) -> pa.Table:
    """Return the stored records of `baseline` with `observed_at_ms`, the instant at which each was last observed. For
    a silent record this is the begin of the silence; otherwise, the last sample of its source; if no sample of the
    source is stored, its last change.
    """
    stored = baseline.records.join(baseline.sources, "source", join_type="left outer")
    observed = pc.coalesce(stored["silent_since_ms"], stored["observed_at_ms"], stored["modified_at_ms"])
    return stored.set_column(stored.schema.get_field_index("observed_at_ms"), "observed_at_ms", observed)


def _limits(row: Mapping[str, Any]) -> tuple[LoadThresholds, float, bool]:
    """Return the limits of a topic from its row of the baseline's thresholds: the split and merge thresholds, the
    relative change of a rate that makes a record be rewritten, and whether only Pulsar's rule applies.
    """
    split, merge = (
        LoadStats(*(row[f"{side}_{metric}"] for metric in METRICS)) for side in ("split", "merge")
    )
    return LoadThresholds(split, merge), row["load_change_threshold"], row["strict_pulsar"]


def _records_to_write(batch: pa.RecordBatch, limits: _Limits) -> pa.Table:
    """Return the records to write, as CHANGE_SCHEMA, for the rows of `batch`, which have `_COLUMNS`: the rates of a
    segment, and its stored record, if there is one. A record is written if the segment has no stored record, if the
    rule `next_record` requires it, if the source has changed, or if the record was silent. The written record is not
    silent. Rows of topics that are not in `limits`, and rows observed before their stored record, are left out.
    """
    changes: list[tuple[Any, ...]] = []
    for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
        topic_id, segment_id, *rates, observed_at, source = row[:8]
        *rates_was, modified_at, cold_since, observed_was, source_was, silent_since, row_version = row[8:]
        if topic_id not in limits:
            continue
        previous = None
        if row_version is not None:
            previous = LoadRecord(LoadStats(*rates_was), modified_at, cold_since, observed_was)
            if observed_at < observed_was:
                continue
        thresholds, change_threshold, strict_pulsar = limits[topic_id]
        update = next_record(
            previous,
            LoadStats(*rates),
            observed_at,
            thresholds,
            change_threshold,
            strict_pulsar=strict_pulsar,
        )
        if update.must_write or source != source_was or silent_since is not None:
            new_record = update.record
            unchanged_columns = new_record.modified_at, new_record.cold_since, None, row_version or 0
            changes.append((topic_id, segment_id, *new_record.stats.rates, source, *unchanged_columns))
    columns = zip(*changes, strict=True) if changes else [()] * len(CHANGE_SCHEMA)
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, CHANGE_SCHEMA, strict=True)],
        schema=CHANGE_SCHEMA,
    )


def _silent_records(
    stored_records: pa.Table,
    current_rates: pa.Table,
    last_samples: pa.Table,
    baseline: Baseline,
    window: LoadWindow,
) -> pa.Table:
    """Return the stored records that become silent, as CHANGE_SCHEMA: their source has samples in this window, but
    their segment has no rates. The silence begins when the record was last observed (`observed_at_ms` of
    `_observed`), but at the start of the window at the latest. Records that are silent already, or whose topic has no
    thresholds, are left out.
    """
    sources_with_samples = last_samples.filter(pc.is_valid(last_samples["observed_at_ms"]))["source"]
    may_be_silent = pc.and_(
        pc.and_(
            pc.is_null(stored_records["silent_since_ms"]),
            pc.is_in(stored_records["source"], sources_with_samples),
        ),
        pc.is_in(stored_records["topic_id"], baseline.thresholds["topic_id"]),
    )
    rows = stored_records.filter(may_be_silent).join(current_rates.select(_KEY), _KEY, join_type="left anti")
    silent_since = pc.min_element_wise(rows["observed_at_ms"], pa.scalar(window.start_ms))
    rows = rows.drop_columns(["silent_since_ms"]).append_column("silent_since_ms", silent_since)
    return (
        rows.rename_columns({"row_version": "seen_row_version"})
        .select(CHANGE_SCHEMA.names)
        .cast(CHANGE_SCHEMA)
    )
