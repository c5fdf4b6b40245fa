"""One run of the aggregation: reads the baseline, has an engine compute rates, merges the changed records by
compare-and-set, and stores the history.

A run covers one window and may be repeated: because of its id and the watermark, a repeated run, or a run
that overlaps a newer one, changes nothing. Files that Cleave did not write are quarantined: moved out of the
area. Files that cannot be read are left out. The result names both. All steps use the loader's rights: to read load and
thresholds, to append to the loader's inbox, and to call one function.

A run that was interrupted between its merge and its publication is finished by a later run. The database records which
runs were merged. A note in each scratch directory names the run of its rates. The directory of a run that was not merged
stays: the run is in progress, or the directory is deleted when it is old. A live run may publish at the same time; both
then move the same files to the same names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from controller import telemetry
from controller.clock import to_datetime, to_ms
from controller.domain.counter_rates import MAX_SOURCE_LENGTH
from controller.domain.errors import Retryable
from controller.domain.load_window import LoadWindow
from controller.landing.area import Examination, LandingArea, RejectedFile
from controller.landing.file_names import LandedFile, day_directories
from controller.landing.history import RateHistory, with_rates
from controller.landing.merged_windows import is_late
from controller.landing.schemas import RATE_SCHEMA
from controller.landing.scratch import Scratch, attempt_of
from controller.services.load_aggregation.engine import Engine, Landed
from controller.services.load_aggregation.key_counts_of_run import Counted, set_aside_files
from controller.services.load_aggregation.record_changes import record_changes
from controller.store import set_aside
from controller.store.load import records as loads
from controller.store.load.records import HEARD_SCHEMA, SOURCE_SCHEMA, Baseline, LoadRun, RunSketches
from controller.store.postgres.arrow_copy import MergeResult
from controller.store.postgres.engine import Store
from controller.store.set_aside import SetAside

log = telemetry.get_logger(__name__)

KeyCounts = Callable[[Baseline, LoadWindow], Counted | None]
"""Returns the key counts of a run, given the baseline of the run and its window. None: the run has no key counts."""
TICK_SLACK_MS = 60_000
"""Maximum milliseconds by which a source's clock, or a file's tick, may differ from the instants in the file.
"""


@dataclass(frozen=True, slots=True)
class AggregationResult:
    """Result of a run. `files` is the number of readable files. The numbers after `files` are 0 if nothing was
    computed.
    """

    run_id: str
    engine: str
    window_end_ms: int
    files: int
    samples: int
    segments: int
    """Number of segments whose counters were read, with or without rates."""
    written: int
    """Number of records written."""
    outrun: int
    """Number of records that were not written because a concurrent writer changed them first, or because their segments
    were pruned.
    """
    applied: bool
    """True if the run was merged. False if the window has no readable files, or if this window, a newer window or a run
    of this id was merged before.
    """
    quarantined: tuple[str, ...]
    """Paths of the files that were quarantined or left out."""


def aggregate(
    store: Store,
    area: LandingArea,
    history: RateHistory,
    engine: Engine,
    window: LoadWindow,
    *,
    run_id: str,
    key_counts: KeyCounts = lambda _baseline, _window: None,
) -> AggregationResult:
    """Aggregate one window: read the stored records, have the engine compute the rates, merge the changed records in
    one transaction, and publish the rates to the history. Before that, publish the rates of runs that were
    interrupted after their merge. Return the result. `store` logs in as the loader. `key_counts` returns the
    key counts since the last run, which update the key histograms; None: they are not updated.

    Nothing is computed if this window or a later window was merged before, or if the window has no readable files.
    Nothing is merged if another run merges such a window during the computation, or if a run of this `run_id` was
    merged before. In all these cases, the result's `applied` is False. Files that are not sample files are
    quarantined, files that cannot be read are left out, and the result names both. If the clock of the database went
    back since the last merge, files whose ticks are in the future are quarantined as well.

    Raises StoreUnavailable and the other errors of `Store.transaction`; Retryable if the storage cannot read a file
    and no other file is usable; the errors of the engine; and OSError if the storage does not answer. If an error
    follows the merge, the merged records stay, and the next run publishes the rates.
    """
    publish_left_over(store, history)
    from_the_future = _quarantine_the_future(area, store.in_transaction(loads.present_after_step_back))
    baseline = store.in_transaction(loads.baseline)
    examined, left_out = _readable_files(area, window)
    left_out = from_the_future + left_out
    if is_late(run_id, window.end_ms, baseline.watermark) or not examined.files:
        return AggregationResult(
            run_id, engine.name, window.end_ms, len(examined.files), 0, 0, 0, 0, False, left_out
        )
    counted = key_counts(baseline, window)
    scratch = history.scratch(attempt_of(run_id))
    try:
        examined, broken = _compute_without_broken_files(
            engine, Landed(area, examined.files, counted), examined, scratch, window
        )
        segments, computed = scratch.rate_rows(), _computed(scratch, baseline, window, counted)
    except BaseException:
        scratch.discard()
        raise
    left_out += broken
    run = LoadRun(run_id, to_datetime(window.end_ms), engine.name, examined.rows, segments, left_out)
    merged = _merge_and_publish(store, history, scratch, run, computed)
    return AggregationResult(
        run_id, engine.name, window.end_ms, len(examined.files), examined.rows, segments,
        merged.written, merged.outrun, merged.applied, left_out,
    )  # fmt: skip


class _Computed(NamedTuple):
    """Rows of a run that are merged."""

    changes: pa.Table
    """Load records to change."""
    last_samples: pa.Table
    """Sources with the times of their last samples, and the samples that were left out."""
    memory_ticks: pa.Table
    sketches: RunSketches | None
    """Key histograms; None if the run has no key counts."""


def _computed(scratch: Scratch, baseline: Baseline, window: LoadWindow, counted: Counted | None) -> _Computed:
    """Return the rows to merge, from the results of the engine in the scratch directory. `counted` are the key counts
    of the run; None: there are none. Raises the errors of the storage.
    """
    rates, last_samples = (
        with_rates(scratch.read("rates", RATE_SCHEMA)),
        scratch.read("heard", HEARD_SCHEMA),
    )
    return _Computed(
        record_changes(rates, last_samples, baseline, window),
        last_samples,
        loads.ticks(rates, baseline.memories),
        None if counted is None else counted.sketches(scratch, rates, baseline),
    )


def _compute_without_broken_files(
    engine: Engine, landed: Landed, examined: Examination, scratch: Scratch, window: LoadWindow
) -> tuple[Examination, tuple[str, ...]]:
    """Have the engine compute the rates of the landed files. Return the examination of the sample files that the
    engine used, which is `examined` if no file was broken, and the paths of the broken files.

    A file may have a valid footer and broken pages. So after an error, the sample files and the key counts are read to
    their end; also after Retryable, because an engine may lose a process over a broken file. Broken files are
    quarantined or left out, and the engine computes once more without them. If no file is broken, or if no sample file
    is left, the error of the engine is raised. Raises the errors of the engine, and OSError if the storage does not
    answer.
    """
    try:
        engine.compute(landed, scratch, window)
    except Exception:
        complete = landed.area.examine(landed.files, deeply=True)
        broken = set_aside_files(landed.area, complete)
        if landed.counted is not None:
            broken += landed.counted.leave_out_broken()
        if not broken or not complete.files:
            raise
        engine.compute(replace(landed, files=complete.files), scratch, window)
        return complete, broken
    return examined, ()


def _merge_and_publish(
    store: Store,
    history: RateHistory,
    scratch: Scratch,
    run: LoadRun,
    computed: _Computed,
) -> MergeResult:
    """Merge the run's load records, sources, memory ticks and key histograms in one transaction, record there the
    samples and segments that were left out, and then publish the run's rates to the history. Return the result of the
    merge. If a run of this id, this window or a later window was merged before, nothing is merged, recorded or
    published.

    The scratch directory is deleted at the end. After an error the directory stays, and the next run checks whether
    the merge was committed. Raises the errors of `Store.transaction`, and OSError if the storage does not answer.
    """
    window_end_ms = to_ms(run.window_end)
    changes, last_samples, memory_ticks, sketches = computed
    scratch.finish(run.run_id, window_end_ms)
    with store.transaction() as tx:
        sources = last_samples.select(SOURCE_SCHEMA.names).drop_null()
        merged = loads.stage_and_merge(tx, run, changes, sources, memory_ticks, sketches)
        if merged.applied:
            set_aside.note(
                tx,
                set_aside.Batch.LOAD,
                [*_excluded_samples(last_samples), *_segments_without_rates(scratch)],
            )
            set_aside.note(tx, set_aside.Batch.KEY_COUNTS, () if sketches is None else sketches.set_aside)
    if merged.applied:
        history.publish(scratch, window_end_ms)
    scratch.discard()
    return merged


def _excluded_samples(last_samples: pa.Table) -> list[SetAside]:
    """Return an entry for `inspect.set_aside`, with the reason, for each source of which the engine skipped invalid
    samples. Empty if there is none.
    """
    return [
        SetAside(
            f"source {row['source']}",
            f"{row['set_aside']} samples, for example of topic {row['topic_id']}, have a counter below 0, or a source whose name is not "
            f"1 to {MAX_SOURCE_LENGTH} characters that PostgreSQL can store",
            row["topic_id"],
        )
        for row in last_samples.filter(pc.greater(last_samples["set_aside"], 0)).to_pylist()
    ]


def _segments_without_rates(scratch: Scratch) -> list[SetAside]:
    """Return an entry for `inspect.set_aside`, with the reason, for each segment whose counters were read but give no
    rate. Empty if there is none.
    """
    return [
        SetAside(
            f"segment {row['segment_id']} of topic {row['topic_id']}",
            f"its counters of source {row['source']} decreased between any two samples, so there is no rate: the broker reloaded the log"
            ", or its reader's clock was set; `cleave doctor` reports collectors and their clocks",
            row["topic_id"],
        )
        for row in scratch.without_rates().to_pylist()
    ]


def _readable_files(area: LandingArea, window: LoadWindow) -> tuple[Examination, tuple[str, ...]]:
    """Return the window's files that can be read, including the files of the time before the window in which
    intervals may begin, and the paths of the other files, which are quarantined or left out, and logged. Raises
    Retryable if the storage cannot read a file and no other file is usable, and OSError if the storage does not
    answer.
    """
    files, foreign_files = _files_to_read(area, window)
    examined = area.examine(files)
    left_out = set_aside_files(area, examined, foreign_files)
    if examined.unreadable and not examined.files:
        raise Retryable(
            f"no sample file of the window can be read ({examined.unreadable[0].path}: "
            f"{examined.unreadable[0].reason}); give this user the right to read the landing area",
            10.0,
        )
    return examined, left_out


def _quarantine_the_future(area: LandingArea, now: datetime | None) -> tuple[str, ...]:
    """Quarantine the files of this day and the next whose ticks are later than `now`, the present time of the database,
    and return their paths. Otherwise these files would be read once the clock reaches their ticks, and the loads of two
    times would be in one window. `now` is None if the clock did not go back; then nothing is read or moved. Raises
    OSError if the storage does not answer.
    """
    if now is None:
        return ()
    first_ms = to_ms(now) + TICK_SLACK_MS
    later = [
        RejectedFile(file.path, "it was landed before the clock of the database went back")
        for directory in day_directories(to_ms(now), to_ms(now + timedelta(days=1)))
        for file in area.landed(directory)
        if file.first_tick_ms > first_ms
    ]
    return set_aside_files(area, Examination((), 0, ()), later)


def upcoming(area: LandingArea, window: LoadWindow) -> list[LandedFile]:
    """Return the files that a run over this window would read, oldest first, including files that will turn out to be
    unusable. Files whose names are not valid are left out. Only the names of files, and the footers of compacted
    files that other files overlap, are read. Raises the errors of the storage.
    """
    return _files_to_read(area, window)[0]


def _files_to_read(area: LandingArea, window: LoadWindow) -> tuple[list[LandedFile], list[RejectedFile]]:
    """Return the files that may have samples of the window or of the time before it in which intervals may begin,
    oldest first, and the files whose names are not valid.
    """
    return area.files(window.read_from_ms - TICK_SLACK_MS, window.end_ms + TICK_SLACK_MS)


def publish_left_over(store: Store, history: RateHistory) -> tuple[str, ...]:
    """Publish to the history the rates of runs that were merged but not published, because the run was interrupted.
    Delete their scratch directories, and log each. Return the ids of these runs; empty if there are none. If other
    rates of the same window are stored already, the rates of the run are deleted without being published, and its id
    is returned nevertheless. Scratch directories of runs that were not merged, or were merged with another window end
    than the directory names, stay. `store` may log in as the loader.

    Raises StoreUnavailable, and OSError if the storage does not answer. After an error, the next call publishes the
    rates that remain.
    """
    unpublished = history.left_over()
    if not unpublished:
        return ()
    merged_runs = store.in_transaction(loads.merged, [run.run_id for _, run in unpublished])
    published_ids = []
    for scratch, run in unpublished:
        if (run.run_id, to_datetime(run.window_end_ms)) in merged_runs:
            history.publish(scratch, run.window_end_ms)
            scratch.discard()
            log.info("history of a dead run published", run=run.run_id, window_end_ms=run.window_end_ms)
            published_ids.append(run.run_id)
    return tuple(published_ids)
