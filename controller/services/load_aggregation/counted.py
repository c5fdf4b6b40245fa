"""Key counts that producers reported: which counts belong to a run, and which of them show where load lies.

Each count belongs to one run: the run whose window ends next. If only a few producers report counts, splits
would follow these few. So the counts of a segment are used only if they cover most of the messages stored in
the segment; otherwise a sample of its log is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from controller import telemetry
from controller.clock import to_ms
from controller.domain.key_counts import PRODUCERS, SEGMENT_MESSAGES
from controller.domain.key_sketch import MOST_BINS
from controller.domain.load_window import LoadWindow
from controller.landing.area import Examination, LandingArea, RejectedFile
from controller.landing.history import Scratch
from controller.landing.names import LandedFile
from controller.store.load.records import SKETCH_SCHEMA, STAGED_SKETCH_SCHEMA, Baseline, RunSketches
from controller.store.set_aside import SetAside

log = telemetry.get_logger(__name__)

LOOKS_BACK_MS = 300_000
"""Maximum age of key counts in milliseconds. After a longer pause of the aggregation, older counts show
little.
"""
MIN_COUNTED_SHARE = 0.5
"""Minimum share of the messages stored in a segment that its counts must cover."""


@dataclass(slots=True)
class Counted:
    """The key counts of one run: files, and the span of their instants (since, until]."""

    area: LandingArea
    files: tuple[LandedFile, ...]
    since_ms: int
    until_ms: int
    fresh_seconds: float

    def leave_out_broken(self) -> tuple[str, ...]:
        """Drop the files that cannot be read to their end. Return their paths."""
        whole = self.area.examine(self.files, deeply=True)
        self.files = whole.files
        return leave_out(self.area, whole)

    def sketches(self, scratch: Scratch, rates: pa.Table, baseline: Baseline) -> CountedKeys:
        """Return the key histograms of an engine for topics whose profile uses them, where they cover most of
        the load; and the segments whose counts were excluded.

        The broker's counters give the number of messages stored in a segment. If producers counted more
        messages, their counts are scaled down to that number: they show where the load lies, not how high it
        is.
        """
        counted_rows = scratch.read("sketches", SKETCH_SCHEMA)
        usable_rows = counted_rows.filter(
            pc.is_in(counted_rows["topic_id"], value_set=baseline.memories["topic_id"].combine_chunks())
        )
        keys = ["topic_id", "segment_id"]
        measured = rates.select([*keys, "msg_rate_in"])
        # A join carries no list columns, so rows are identified by their index.
        indexed = usable_rows.select([*keys, "messages"]).append_column(
            "index", pa.array(range(usable_rows.num_rows), pa.int64())
        )
        joined = indexed.join(measured, keys, join_type="inner").sort_by("index")
        counted = joined["messages"].cast(pa.float64(), safe=False)
        stored = pc.multiply(joined["msg_rate_in"], (self.until_ms - self.since_ms) / 1000)
        covers_most = pc.and_(
            pc.greater(counted, 0.0), pc.greater_equal(counted, pc.multiply(stored, MIN_COUNTED_SHARE))
        )
        share = pc.min_element_wise(pc.divide(stored.filter(covers_most), counted.filter(covers_most)), 1.0)
        rows = _scaled(usable_rows.take(joined.filter(covers_most)["index"]), share)
        return CountedKeys(RunSketches(rows, self.fresh_seconds), _set_aside(counted_rows))


@dataclass(frozen=True, slots=True)
class CountedKeys:
    """The key histograms of one run, and the segments for which it excluded counts."""

    sketches: RunSketches
    set_aside: Sequence[SetAside]


def _scaled(rows: pa.Table, share: pa.ChunkedArray) -> pa.Table:
    """Multiply the bins of each row by its share, and return the rows as STAGED_SKETCH_SCHEMA. The number of
    producers is limited to the maximum of a topic.
    """
    lists = rows["bins"].combine_chunks()
    of_each = pc.take(share, pc.list_parent_indices(lists))
    values = pc.round(pc.multiply(pc.list_flatten(lists).cast(pa.float64(), safe=False), of_each))
    bins = pa.ListArray.from_arrays(_offsets(lists), values.combine_chunks().cast(pa.int64()))
    producers = pc.min_element_wise(rows["producers"], PRODUCERS)
    columns = {
        "topic_id": rows["topic_id"],
        "segment_id": rows["segment_id"],
        "producers": producers,
        "bins": bins,
    }
    return pa.table(columns).cast(STAGED_SKETCH_SCHEMA)


def _offsets(lists: pa.ListArray) -> pa.Array:
    """Return the index at which each list begins, from 0: the array may be a slice of a longer array."""
    return pc.subtract(lists.offsets, lists.offsets[0])


def _set_aside(counted_rows: pa.Table) -> list[SetAside]:
    rows = counted_rows.filter(pc.greater(counted_rows["set_aside"], 0)).select(
        ["topic_id", "segment_id", "set_aside"]
    )
    return [
        SetAside(
            f"segment {row['segment_id']} of topic {row['topic_id']}",
            f"{row['set_aside']} rows of counts do not have 1 to {MOST_BINS} bins with 0 to {SEGMENT_MESSAGES} messages in total, "
            f"counted by {PRODUCERS} producers at most",
            row["topic_id"],
        )
        for row in rows.to_pylist()
    ]


@dataclass(frozen=True, slots=True)
class KeyCountIntake:
    """The area where key counts land, and how long decisions use the key histograms made of them."""

    area: LandingArea
    fresh_seconds: float

    def since_last_run(self, baseline: Baseline, window: LoadWindow) -> Counted | None:
        """Return the counts after the window of the last run, up to the end of this window. None if there are
        no counts or no topic uses them.
        """
        if not baseline.memories.num_rows:
            return None
        last = window.start_ms if baseline.watermark is None else to_ms(baseline.watermark)
        since_ms = max(last, window.end_ms - LOOKS_BACK_MS)
        files, foreign = self.area.files(since_ms, window.end_ms)
        usable = self.area.examine(files)
        leave_out(self.area, usable, foreign)
        if not usable.files:
            return None
        return Counted(self.area, usable.files, since_ms, window.end_ms, self.fresh_seconds)


def leave_out(
    area: LandingArea, examined: Examination, foreign: Sequence[RejectedFile] = ()
) -> tuple[str, ...]:
    """Quarantine files that are not sample files, and log files that the storage cannot read. Return the
    paths of both.
    """
    for file in (*foreign, *examined.rejected):
        log.warning("file set aside", path=file.path, reason=file.reason)
    for file in examined.unreadable:
        log.warning("file left out", path=file.path, reason=file.reason)
    moved = area.quarantine([*foreign, *examined.rejected])
    return (*moved, *(file.path for file in examined.unreadable))
