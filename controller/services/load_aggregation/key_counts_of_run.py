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
from controller.domain.key_count_limits import PRODUCERS, SEGMENT_MESSAGES
from controller.domain.key_sketch import MOST_BINS
from controller.domain.load_window import LoadWindow
from controller.landing.area import Examination, LandingArea, RejectedFile
from controller.landing.file_names import LandedFile
from controller.landing.scratch import Scratch
from controller.store.load.records import SKETCH_SCHEMA, STAGED_SKETCH_SCHEMA, Baseline, RunSketches
from controller.store.set_aside import SetAside

log = telemetry.get_logger(__name__)

MAX_COUNT_AGE_MS = 300_000
"""Maximum age of key counts in milliseconds. After a longer pause of the aggregation, older counts show
little.
"""
MIN_COUNTED_SHARE = 0.5
"""Minimum share of the messages stored in a segment that its counts must cover."""


@dataclass(slots=True)
class Counted:
    """The key counts of one run: files, the span of their instants (since, until] in milliseconds since the Unix
    epoch, and the seconds for which decisions use the key histograms made of them (`fresh_seconds`).
    """

    area: LandingArea
    files: tuple[LandedFile, ...]
    since_ms: int
    until_ms: int
    fresh_seconds: float

    def leave_out_broken(self) -> tuple[str, ...]:
        """Remove from `files` the files that cannot be read to their end, and quarantine or log them. Return
        their paths.
        """
        examined = self.area.examine(self.files, deeply=True)
        self.files = examined.files
        return set_aside_files(self.area, examined)

    def sketches(self, scratch: Scratch, rates: pa.Table, baseline: Baseline) -> RunSketches:
        """Return the key histograms of the segments whose counts cover at least `MIN_COUNTED_SHARE` of the stored
        messages, for topics whose profile uses them (those in `baseline.memories`); and the segments of which the
        engine excluded counts that no producer can have. The counts come from the scratch directory, where an engine
        added them up.

        The broker's counters (`rates`) give the number of messages stored in a segment; a segment without a rate has no
        histogram. If producers counted more messages, their counts are scaled down to that number: they show where the
        load lies, not how high it is.
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
        counted_messages = joined["messages"].cast(pa.float64(), safe=False)
        stored_messages = pc.multiply(joined["msg_rate_in"], (self.until_ms - self.since_ms) / 1000)
        covers_most = pc.and_(
            pc.greater(counted_messages, 0.0),
            pc.greater_equal(counted_messages, pc.multiply(stored_messages, MIN_COUNTED_SHARE)),
        )
        scale = pc.min_element_wise(
            pc.divide(stored_messages.filter(covers_most), counted_messages.filter(covers_most)), 1.0
        )
        rows = _scaled(usable_rows.take(joined.filter(covers_most)["index"]), scale)
        return RunSketches(rows, self.fresh_seconds, _excluded_counts(counted_rows))


def _scaled(rows: pa.Table, scale: pa.ChunkedArray) -> pa.Table:
    """Multiply the bins of each row by the factor at the row's index in `scale`, round them, and return the rows as
    STAGED_SKETCH_SCHEMA. The number of producers is limited to the maximum of a topic.
    """
    lists = rows["bins"].combine_chunks()
    scale_of_bin = pc.take(scale, pc.list_parent_indices(lists))
    values = pc.round(pc.multiply(pc.list_flatten(lists).cast(pa.float64(), safe=False), scale_of_bin))
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


def _excluded_counts(counted_rows: pa.Table) -> list[SetAside]:
    """Return an entry, with the reason, for each segment with counts that no producer can have."""
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
    """The area where key counts land, and for how many seconds decisions use the key histograms made of them."""

    area: LandingArea
    fresh_seconds: float

    def since_last_run(self, baseline: Baseline, window: LoadWindow) -> Counted | None:
        """Return the files of the counts since the end of the last merged run's window (before the first run: since the
        begin of this window), but at most `MAX_COUNT_AGE_MS` before the end of this window, up to that end. None if
        there is no usable file or no topic uses key counts. Quarantines files that are not key counts, and leaves out
        files that the storage cannot read. Raises OSError if the storage does not answer.
        """
        if not baseline.memories.num_rows:
            return None
        last_end_ms = window.start_ms if baseline.watermark is None else to_ms(baseline.watermark)
        since_ms = max(last_end_ms, window.end_ms - MAX_COUNT_AGE_MS)
        files, foreign = self.area.files(since_ms, window.end_ms)
        examined = self.area.examine(files)
        set_aside_files(self.area, examined, foreign)
        if not examined.files:
            return None
        return Counted(self.area, examined.files, since_ms, window.end_ms, self.fresh_seconds)


def set_aside_files(
    area: LandingArea, examined: Examination, foreign: Sequence[RejectedFile] = ()
) -> tuple[str, ...]:
    """Quarantine the files of `foreign` and the rejected files of `examined`, which are not valid files of the area:
    move them out of the area. Leave files that the storage cannot read where they are. Log both, and return their
    former paths; a file that another run has moved already is left out.
    """
    for file in (*foreign, *examined.rejected):
        log.warning("file set aside", path=file.path, reason=file.reason)
    for file in examined.unreadable:
        log.warning("file left out", path=file.path, reason=file.reason)
    quarantined_paths = area.quarantine([*foreign, *examined.rejected])
    return (*quarantined_paths, *(file.path for file in examined.unreadable))
