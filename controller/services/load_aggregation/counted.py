"""Counts of keys that producers handed in: which belong to a run, and which of them say where load lies.

Each count belongs to one run: the one whose window ends next. Counts of some producers only would have segments cut where these
few send to. So a segment's are used where they are of most of what was stored there; elsewhere a sample of its log tells.
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
"""After a longer pause of the aggregation, older counts say little."""
MOST_OF_IT = 0.5
"""Of the messages stored in a segment, so many must be counted."""


@dataclass(slots=True)
class Counted:
    """The counts of one run: files, and the span of their instants (since, until]."""

    area: LandingArea
    files: tuple[LandedFile, ...]
    since_ms: int
    until_ms: int
    fresh_seconds: float

    def leave_out_broken(self) -> tuple[str, ...]:
        """Goes on without files that cannot be read to their end; returns their paths."""
        whole = self.area.examine(self.files, deeply=True)
        self.files = whole.files
        return leave_out(self.area, whole)

    def sketches(self, scratch: Scratch, rates: pa.Table, baseline: Baseline) -> CountedKeys:
        """Return the sums of an engine for topics whose profile reads sketches, where they cover most of the load; and what is excluded.

        The broker's counters say how much was stored in a segment. Where producers count more, their counts are scaled down to that:
        they say where the load lies, and nothing of how much it is.
        """
        found = scratch.read("sketches", SKETCH_SCHEMA)
        wanted = found.filter(
            pc.is_in(found["topic_id"], value_set=baseline.memories["topic_id"].combine_chunks())
        )
        keys = ["topic_id", "segment_id"]
        measured = rates.select([*keys, "msg_rate_in"])
        # a join takes no lists along: the rows are found again by their place
        placed = wanted.select([*keys, "messages"]).append_column(
            "place", pa.array(range(wanted.num_rows), pa.int64())
        )
        joined = placed.join(measured, keys, join_type="inner").sort_by("place")
        counted = joined["messages"].cast(pa.float64(), safe=False)
        stored = pc.multiply(joined["msg_rate_in"], (self.until_ms - self.since_ms) / 1000)
        most = pc.and_(pc.greater(counted, 0.0), pc.greater_equal(counted, pc.multiply(stored, MOST_OF_IT)))
        share = pc.min_element_wise(pc.divide(stored.filter(most), counted.filter(most)), 1.0)
        rows = _scaled(wanted.take(joined.filter(most)["place"]), share)
        return CountedKeys(RunSketches(rows, self.fresh_seconds), _set_aside(found))


@dataclass(frozen=True, slots=True)
class CountedKeys:
    """The sketches of one run, and the segments of which it excluded counts."""

    sketches: RunSketches
    set_aside: Sequence[SetAside]


def _scaled(rows: pa.Table, share: pa.ChunkedArray) -> pa.Table:
    """Each row's bins times its share, as STAGED_SKETCH_SCHEMA; not more producers than a topic may have."""
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
    """Return the index at which each list begins, from 0: an array may be a slice of a longer one."""
    return pc.subtract(lists.offsets, lists.offsets[0])


def _set_aside(found: pa.Table) -> list[SetAside]:
    rows = found.filter(pc.greater(found["set_aside"], 0)).select(["topic_id", "segment_id", "set_aside"])
    return [
        SetAside(
            f"segment {row['segment_id']} of topic {row['topic_id']}",
            f"{row['set_aside']} rows of counts are not 1 to {MOST_BINS} bins of 0 to {SEGMENT_MESSAGES} messages in all, "
            f"counted by {PRODUCERS} producers at most",
            row["topic_id"],
        )
        for row in rows.to_pylist()
    ]


@dataclass(frozen=True, slots=True)
class KeyCountIntake:
    """Where counts of keys land, and how long sketches made of them play a part in decisions."""

    area: LandingArea
    fresh_seconds: float

    def since_last_run(self, baseline: Baseline, window: LoadWindow) -> Counted | None:
        """What came after the last run's window, up to the end of this one; None where there is none or nobody looks at it."""
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
    """Sets aside what is no sample file, and logs what the storage cannot read; returns the paths of both."""
    for one in (*foreign, *examined.rejected):
        log.warning("file set aside", path=one.path, reason=one.reason)
    for one in examined.unreadable:
        log.warning("file left out", path=one.path, reason=one.reason)
    moved = area.quarantine([*foreign, *examined.rejected])
    return (*moved, *(one.path for one in examined.unreadable))
