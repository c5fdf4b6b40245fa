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
        """Read all files to their end, and keep in `files` only those that can be read. Files without valid contents
        are quarantined; files that the storage cannot read stay where they are. Both are logged. Return the former
        paths of these files; empty if no file is broken. Raises OSError if the storage does not answer.
        """
        examined = self.area.examine(self.files, deeply=True)
        self.files = examined.files
        return set_aside_files(self.area, examined)

    def sketches(self, scratch: Scratch, rates: pa.Table, baseline: Baseline) -> RunSketches:
        """Return the key histograms to store, and the segments of which the engine excluded counts that no producer
        can have. The counts are read from the scratch directory, where the engine has written their sums.

        A segment has a key histogram if its counts cover at least `MIN_COUNTED_SHARE` of the messages stored in the
        segment, and if its topic is in `baseline.memories`, which holds the topics whose profile uses key histograms.
        The broker's counters (`rates`) give the number of stored messages; a segment without a rate has no key
        histogram. If producers counted more messages, their counts are scaled down to that number: they show where
        the load lies, not how high it is. Raises OSError if the storage does not answer.
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
    """Return the rows as STAGED_SKETCH_SCHEMA, with the bins of each row multiplied by the factor that `scale` has at
    the index of the row, and rounded to whole messages. A number of producers above `PRODUCERS`, the maximum of a
    topic, is set to this maximum.
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
    """Return an entry for `inspect.set_aside`, with the reason, for each segment of which the engine excluded counts
    that no producer can have. Empty if there is none.
    """
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


def counts_since_last_run(
    area: LandingArea, fresh_seconds: float, baseline: Baseline, window: LoadWindow
) -> Counted | None:
    """Return the key counts in `area` that belong to this run: the files whose counts landed between the end of the last
    merged run's window (before the first run: the begin of `window`) and the end of `window`, but at most
    `MAX_COUNT_AGE_MS` before that end. Return None if no such file is usable, or if no topic uses key counts
    (`baseline.memories` is empty). Decisions use the key histograms made of the counts for `fresh_seconds`.

    Files that are not key counts are quarantined. Files that the storage cannot read are left out. Both are
    logged. Raises OSError if the storage does not answer.
    """
    if not baseline.memories.num_rows:
        return None
    last_end_ms = window.start_ms if baseline.watermark is None else to_ms(baseline.watermark)
    since_ms = max(last_end_ms, window.end_ms - MAX_COUNT_AGE_MS)
    files, foreign = area.files(since_ms, window.end_ms)
    examined = area.examine(files)
    set_aside_files(area, examined, foreign)
    if not examined.files:
        return None
    return Counted(area, examined.files, since_ms, window.end_ms, fresh_seconds)


def set_aside_files(
    area: LandingArea, examined: Examination, foreign: Sequence[RejectedFile] = ()
) -> tuple[str, ...]:
    """Move the files of `foreign`, whose names are not valid, and the rejected files of `examined`, which have no
    valid contents, out of the area into the quarantine. The unreadable files of `examined` stay where they are. Log
    each file with the reason. Return the former paths of all these files. A file that another run has moved already
    is absent; a file that cannot be moved is logged once more and returned.
    """
    for file in (*foreign, *examined.rejected):
        log.warning("file set aside", path=file.path, reason=file.reason)
    for file in examined.unreadable:
        log.warning("file left out", path=file.path, reason=file.reason)
    quarantined_paths = area.quarantine([*foreign, *examined.rejected])
    return (*quarantined_paths, *(file.path for file in examined.unreadable))
