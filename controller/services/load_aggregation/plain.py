"""The aggregation in plain Python, by the domain's own functions: the fallback without Java, and a test oracle.

Holds the window's samples of one run in memory, so it is for one machine's worth of topics; it says so each time.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pyarrow as pa

from controller import telemetry
from controller.domain.load import (
    METRICS,
    CounterSample,
    LoadRecord,
    LoadStats,
    LoadThresholds,
    WindowLoad,
    next_record,
    rates_from_counters,
)
from controller.domain.load_window import LoadWindow
from controller.landing.area import LandingArea
from controller.landing.history import Scratch
from controller.landing.names import LandedFile
from controller.landing.schemas import RATE_SCHEMA, SAMPLE_SCHEMA
from controller.store.loads import CHANGE_SCHEMA, RECORD_SCHEMA, SOURCE_SCHEMA, THRESHOLD_SCHEMA

log = telemetry.get_logger(__name__)

SegmentKey = tuple[int, int]
Row = dict[str, Any]


class PlainEngine:
    """Computes a run in this process."""

    name = "plain"

    def compute(
        self, area: LandingArea, files: tuple[LandedFile, ...], scratch: Scratch, window: LoadWindow
    ) -> None:
        """See ``Engine.compute``."""
        log.warning("aggregating without Spark, in this process; fine for one machine's worth of topics")
        samples = _samples(area, files, window)
        rates = {
            key: (load, _last_source(mine, window))
            for key, mine in samples.items()
            if (load := rates_from_counters(mine, window.end_ms, window.length_ms)) is not None
        }
        heard: dict[str, int] = {}
        for mine in samples.values():
            for sample in mine:
                if window.start_ms < sample.instant_ms <= window.end_ms:
                    heard[sample.source] = max(heard.get(sample.source, 0), sample.instant_ms)
        scratch.write(
            "rates",
            pa.Table.from_pylist([_rate_row(key, *found) for key, found in rates.items()], RATE_SCHEMA),
        )
        sources = [{"source": source, "observed_at_ms": at} for source, at in heard.items()]
        scratch.write("heard", pa.Table.from_pylist(sources, SOURCE_SCHEMA))
        scratch.write("changes", pa.Table.from_pylist(_changes(scratch, rates, heard, window), CHANGE_SCHEMA))


def _samples(
    area: LandingArea, files: tuple[LandedFile, ...], window: LoadWindow
) -> dict[SegmentKey, list[CounterSample]]:
    found: dict[SegmentKey, list[CounterSample]] = defaultdict(list)
    for batch in area.batches(files, SAMPLE_SCHEMA.names):
        for row in batch.to_pylist():
            instant_ms = int(row["instant"].timestamp() * 1000)
            if window.read_from_ms < instant_ms <= window.end_ms:
                counters = (row["msg_in"], row["byte_in"], row["msg_out"], row["byte_out"])
                found[row["topic_id"], row["segment_id"]].append(
                    CounterSample(row["source"], instant_ms, *counters)
                )
    return found


def _last_source(samples: list[CounterSample], window: LoadWindow) -> str:
    """The source that was heard last in the window."""
    return max((s.instant_ms, s.source) for s in samples if window.start_ms < s.instant_ms <= window.end_ms)[
        1
    ]


def _rate_row(key: SegmentKey, load: WindowLoad, source: str) -> Row:
    row: Row = {"topic_id": key[0], "segment_id": key[1], **dict(zip(METRICS, load.stats.rates, strict=True))}
    return row | {"observed_at_ms": load.observed_at, "covered_ms": load.covered_ms, "source": source}


def _changes(
    scratch: Scratch,
    rates: dict[SegmentKey, tuple[WindowLoad, str]],
    heard: dict[str, int],
    window: LoadWindow,
) -> list[Row]:
    """Records to write: news, a changed coldness or source, and those whose source speaks of others only."""
    seen_at = {
        row["source"]: row["observed_at_ms"] for row in scratch.read("sources", SOURCE_SCHEMA).to_pylist()
    }
    limits = {row["topic_id"]: row for row in scratch.read("thresholds", THRESHOLD_SCHEMA).to_pylist()}
    records = {
        (r["topic_id"], r["segment_id"]): r for r in scratch.read("records", RECORD_SCHEMA).to_pylist()
    }
    changes = []
    for key, (load, source) in rates.items():
        if key[0] in limits:
            row = _judged(key, load, source, limits[key[0]], records.get(key), seen_at)
            changes += [row] if row else []
    for key, record in records.items():
        if (
            key not in rates
            and key[0] in limits
            and record["source"] in heard
            and record["silent_since_ms"] is None
        ):
            silent = min(_observed_at(record, seen_at), window.start_ms)
            changes.append(_change_row(key, record, record["row_version"]) | {"silent_since_ms": silent})
    return changes


def _judged(
    key: SegmentKey, load: WindowLoad, source: str, limits: Row, record: Row | None, seen_at: dict[str, int]
) -> Row | None:
    """The row to write for an observed segment; None where the record stands."""
    thresholds = LoadThresholds(
        LoadStats(*(limits[f"split_{m}"] for m in METRICS)),
        LoadStats(*(limits[f"merge_{m}"] for m in METRICS)),
    )
    previous = None
    if record is not None:
        stats = LoadStats(*(record[m] for m in METRICS))
        previous = LoadRecord(
            stats, record["modified_at_ms"], record["cold_since_ms"], _observed_at(record, seen_at)
        )
        if load.observed_at < previous.observed_at:
            return None
    update = next_record(previous, load.stats, load.observed_at, thresholds, limits["load_change_threshold"])
    moved = record is not None and (source != record["source"] or record["silent_since_ms"] is not None)
    if not update.must_write and not moved:
        return None
    new = update.record
    fields: Row = {**dict(zip(METRICS, new.stats.rates, strict=True)), "source": source}
    fields |= {"modified_at_ms": new.modified_at, "cold_since_ms": new.cold_since, "silent_since_ms": None}
    return _change_row(key, fields, 0 if record is None else record["row_version"])


def _change_row(key: SegmentKey, fields: Row, seen_row_version: int) -> Row:
    kept = {name: fields[name] for name in CHANGE_SCHEMA.names if name in fields}
    return kept | {"topic_id": key[0], "segment_id": key[1], "seen_row_version": seen_row_version}


def _observed_at(record: Row, seen_at: dict[str, int]) -> int:
    silent_since_ms: int | None = record["silent_since_ms"]
    modified_at_ms: int = record["modified_at_ms"]
    return seen_at.get(record["source"], modified_at_ms) if silent_since_ms is None else silent_since_ms
