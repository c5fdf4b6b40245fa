"""One run of the aggregation: reads the baseline, has an engine compute rates, merges the changed records by
compare-and-set, and stores the history.

A run covers one window and may be repeated: because of its id and the watermark, a repeated run, or a run
that overlaps a newer one, changes nothing. Files that cannot be read, or that Cleave did not write, are set
aside and named in the result; the run continues. All steps use the loader's rights: to read load and
thresholds, to append to the loader's inbox, and to call one function.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from secrets import token_hex
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from controller.clock import to_datetime, to_ms
from controller.domain.counter_rates import MAX_SOURCE_LENGTH
from controller.domain.errors import Retryable
from controller.domain.load_window import LoadWindow
from controller.landing.area import Examination, LandingArea
from controller.landing.history import RateHistory, Scratch, with_rates
from controller.landing.names import LandedFile
from controller.landing.schemas import RATE_SCHEMA
from controller.services.load_aggregation.counted import CountedKeys, KeyCountIntake, leave_out
from controller.services.load_aggregation.landed import Landed
from controller.services.load_aggregation.record_changes import record_changes
from controller.services.load_aggregation.recovery import publish_left_over
from controller.store import set_aside
from controller.store.load import records as loads
from controller.store.load.records import HEARD_SCHEMA, SOURCE_SCHEMA, LoadRun
from controller.store.postgres.arrow_copy import MergeResult
from controller.store.postgres.engine import Store
from controller.store.set_aside import SetAside

TICK_SLACK_MS = 60_000
"""Maximum milliseconds by which a source's clock, or a file's tick, may differ from the instants in the file.
"""


class Engine(Protocol):
    """Computes the rates of one run. Writes `rates` (RATE_SCHEMA) and `heard` (HEARD_SCHEMA) to the scratch
    directory, and `sketches` (SKETCH_SCHEMA) if the run has key counts.
    """

    name: str

    def compute(self, landed: Landed, scratch: Scratch, window: LoadWindow) -> None:
        """Compute the rates. Raises Retryable if the engine is unavailable, Terminal if it can never compute
        this run.
        """


@dataclass(frozen=True, slots=True)
class AggregationResult:
    """Result of a run. `written` is the number of records written, `outrun` the number of records that a
    concurrent writer changed first.
    """

    run_id: str
    engine: str
    window_end_ms: int
    files: int
    samples: int
    segments: int
    written: int
    outrun: int
    applied: bool
    """True if the run was merged. False if there was nothing to merge, or a newer window was merged before.
    """
    quarantined: tuple[str, ...]


def aggregate(
    store: Store,
    area: LandingArea,
    history: RateHistory,
    engine: Engine,
    window: LoadWindow,
    *,
    run_id: str,
    key_counts: KeyCountIntake | None = None,
) -> AggregationResult:
    """Aggregate one window, and publish the rates that a dead run merged. `store` logs in as the loader.
    `key_counts` supplies the key counts since the last run, which update the key histograms.

    Raises StoreUnavailable, the errors of the engine, and OSError if the storage does not answer.
    """
    publish_left_over(store, history)
    with store.transaction() as tx:
        baseline = loads.baseline(tx)
    usable, left_out = _usable(area, window)
    is_late = baseline.watermark is not None and to_ms(baseline.watermark) >= window.end_ms
    if is_late or not usable.files:
        return AggregationResult(
            run_id, engine.name, window.end_ms, len(usable.files), 0, 0, 0, 0, False, left_out
        )
    counted = None if key_counts is None else key_counts.since_last_run(baseline, window)
    scratch = history.scratch(f"{run_id}-{token_hex(4)}")  # two attempts of a run must not share a directory
    try:
        usable, broken = _compute(engine, Landed(area, usable.files, counted), usable, scratch, window)
        left_out += broken
        segments = scratch.rate_rows()
        rates, heard = with_rates(scratch.read("rates", RATE_SCHEMA)), scratch.read("heard", HEARD_SCHEMA)
        changes = record_changes(rates, heard, baseline, window)
        remembered = loads.ticks(rates, baseline.memories)
        counts = None if counted is None else counted.sketches(scratch, rates, baseline)
    except BaseException:
        scratch.discard()
        raise
    run = LoadRun(run_id, to_datetime(window.end_ms), engine.name, usable.rows, segments, left_out)
    merged = _merge_and_publish(store, history, scratch, run, changes, heard, remembered, counts)
    return AggregationResult(
        run_id, engine.name, window.end_ms, len(usable.files), usable.rows, segments,
        merged.written, merged.outrun, merged.applied, left_out,
    )  # fmt: skip


def _merge_and_publish(
    store: Store,
    history: RateHistory,
    scratch: Scratch,
    run: LoadRun,
    changes: pa.Table,
    heard: pa.Table,
    remembered: pa.Table,
    counts: CountedKeys | None,
) -> MergeResult:
    """Merge the run and publish its rates. After an error the scratch directory stays; the next run checks
    whether the merge was committed.
    """
    window_end_ms = to_ms(run.window_end)
    scratch.finish(run.run_id, window_end_ms)
    with store.transaction() as tx:
        sources = heard.select(SOURCE_SCHEMA.names).drop_null()
        sketches = None if counts is None else counts.sketches
        merged = loads.stage_and_merge(tx, run, changes, sources, remembered, sketches)
        if merged.applied:
            set_aside.note(tx, set_aside.Batch.LOAD, [*_set_aside(heard), *_without_rates(scratch)])
            set_aside.note(tx, set_aside.Batch.KEY_COUNTS, () if counts is None else counts.set_aside)
    if merged.applied:
        history.publish(scratch, window_end_ms)
    scratch.discard()
    return merged


def _set_aside(heard: pa.Table) -> list[SetAside]:
    """Return the sources of which samples were left out."""
    return [
        SetAside(
            f"source {row['source']}",
            f"{row['set_aside']} samples, for example of topic {row['topic_id']}, have a counter below 0, or a source whose name is not "
            f"1 to {MAX_SOURCE_LENGTH} characters that PostgreSQL can store",
            row["topic_id"],
        )
        for row in heard.filter(pc.greater(heard["set_aside"], 0)).to_pylist()
    ]


def _without_rates(scratch: Scratch) -> list[SetAside]:
    """Return the segments whose counters were read but give no rate."""
    return [
        SetAside(
            f"segment {row['segment_id']} of topic {row['topic_id']}",
            f"its counters of source {row['source']} decreased between any two samples, so there is no rate: the broker reloaded the log"
            ", or its reader's clock was set; `cleave doctor` reports collectors and their clocks",
            row["topic_id"],
        )
        for row in scratch.without_rates().to_pylist()
    ]


def _usable(area: LandingArea, window: LoadWindow) -> tuple[Examination, tuple[str, ...]]:
    """Return the window's files that can be read, and the paths of the others. Raises Retryable if no file
    can be read.
    """
    files, foreign = area.files(window.read_from_ms - TICK_SLACK_MS, window.end_ms + TICK_SLACK_MS)
    usable = area.examine(files)
    left_out = leave_out(area, usable, foreign)
    if usable.unreadable and not usable.files:
        raise Retryable(
            f"no sample file of the window can be read ({usable.unreadable[0].path}: "
            f"{usable.unreadable[0].reason}); give this user the right to read the landing area",
            10.0,
        )
    return usable, left_out


def _compute(
    engine: Engine, landed: Landed, usable: Examination, scratch: Scratch, window: LoadWindow
) -> tuple[Examination, tuple[str, ...]]:
    """Have the engine compute. Return the files that it used, and the paths of files whose errors appeared
    only when they were read to the end.

    A file may have a valid footer and broken pages. So if an engine fails with an unexpected error, the files
    are read to the end before the error is attributed to the engine.
    """
    try:
        engine.compute(landed, scratch, window)
    except Retryable:
        raise
    except Exception:
        whole = landed.area.examine(landed.files, deeply=True)
        broken = leave_out(landed.area, whole)
        if landed.counted is not None:
            broken += landed.counted.leave_out_broken()
        if not broken or not whole.files:
            raise
        engine.compute(replace(landed, files=whole.files), scratch, window)
        return whole, broken
    return usable, ()


def upcoming(area: LandingArea, window_seconds: float, end_ms: int) -> list[LandedFile]:
    """Return the files that a run over the window that ends at `end_ms` would read; for a dry run."""
    return area.files(end_ms - round(window_seconds * 1000) - TICK_SLACK_MS, end_ms + TICK_SLACK_MS)[0]
