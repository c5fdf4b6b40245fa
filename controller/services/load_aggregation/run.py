"""One run: read the baseline, have an engine compute, merge what changed by compare-and-set, keep the history.

A run is of one window and may be repeated: its id and the watermark make a repeat, or a run that overlaps a newer
one, change nothing. Files that cannot be read, or are none of ours, are set aside by name and the rest goes on.
Everything runs with the loader's rights: it reads load and thresholds, appends to its inbox, calls one function.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from secrets import token_hex
from typing import Protocol

from controller import telemetry
from controller.clock import to_datetime, to_ms
from controller.domain.errors import Retryable
from controller.domain.load_window import LoadWindow
from controller.landing.area import Examined, LandingArea, Rejected
from controller.landing.history import RateHistory, Scratch
from controller.landing.names import LandedFile
from controller.store import loads
from controller.store.engine import Store
from controller.store.loads import CHANGE_SCHEMA, SOURCE_SCHEMA, LoadRun, MergeResult

log = telemetry.get_logger(__name__)

TICK_SLACK_MS = 60_000
"""A source's clock, and a file's tick, may be this far from the instants inside the file."""


class Engine(Protocol):
    """Computes one run. Reads ``records``, ``sources`` and ``thresholds`` (store/loads.py) from the scratch
    directory and writes ``rates`` (RATE_SCHEMA), ``changes`` (CHANGE_SCHEMA) and ``heard`` (SOURCE_SCHEMA) to it.
    """

    name: str

    def compute(
        self, area: LandingArea, files: tuple[LandedFile, ...], scratch: Scratch, window: LoadWindow
    ) -> None:
        """Raises Retryable when the engine is away, Terminal when it can never do this."""


@dataclass(frozen=True, slots=True)
class AggregationResult:
    """What a run did."""

    run_id: str
    engine: str
    window_end_ms: int
    files: int
    samples: int
    segments: int
    written: int
    outrun: int
    applied: bool
    """False: nothing to do, or a newer window has been merged already."""
    quarantined: tuple[str, ...]


def aggregate(
    store: Store, area: LandingArea, history: RateHistory, engine: Engine, window: LoadWindow, *, run_id: str
) -> AggregationResult:
    """Aggregate one window. `store` logs in as the loader.

    Raises StoreUnavailable, what the engine raises, and OSError when the storage does not answer.
    """
    with store.transaction() as tx:
        baseline = loads.baseline(tx)
    files, foreign = area.files(window.read_from_ms - TICK_SLACK_MS, window.end_ms + TICK_SLACK_MS)
    usable = area.examine(files)
    quarantined = _set_aside(area, [*foreign, *usable.rejected])
    is_late = baseline.watermark is not None and to_ms(baseline.watermark) >= window.end_ms
    if is_late or not usable.files:
        return AggregationResult(
            run_id, engine.name, window.end_ms, len(usable.files), 0, 0, 0, 0, False, quarantined
        )
    scratch = history.scratch(
        f"{run_id}-{token_hex(4)}"
    )  # two attempts of one run keep out of each other's way
    try:
        for name in ("records", "sources", "thresholds"):
            scratch.write(name, getattr(baseline, name))
        usable, broken = _compute(engine, area, usable, scratch, window)
        quarantined += broken
        segments = scratch.rate_rows()
        run = LoadRun(run_id, to_datetime(window.end_ms), engine.name, usable.rows, segments, quarantined)
        merged = _merge(store, scratch, run)
        if merged.applied:
            history.publish(scratch, window.end_ms)
    finally:
        scratch.discard()
    return AggregationResult(
        run_id, engine.name, window.end_ms, len(usable.files), usable.rows, segments,
        merged.written, merged.outrun, merged.applied, quarantined,
    )  # fmt: skip


def _set_aside(area: LandingArea, rejected: Sequence[Rejected]) -> tuple[str, ...]:
    for one in rejected:
        log.warning("file set aside", path=one.path, reason=one.reason)
    return tuple(area.quarantine(rejected))


def _compute(
    engine: Engine, area: LandingArea, usable: Examined, scratch: Scratch, window: LoadWindow
) -> tuple[Examined, tuple[str, ...]]:
    """Have the engine compute; the files it computed from, and those set aside since only reading whole showed them.

    A sound footer may stand over broken pages. So where an engine fails, the files are read to the end before the
    fault is called its own.
    """
    try:
        engine.compute(area, usable.files, scratch, window)
    except Retryable:
        raise
    except Exception:
        whole = area.examine(usable.files, deeply=True)
        if not whole.rejected or not whole.files:
            _set_aside(area, whole.rejected)
            raise
        broken = _set_aside(area, whole.rejected)
        engine.compute(area, whole.files, scratch, window)
        return whole, broken
    return usable, ()


def upcoming(area: LandingArea, window_seconds: float, end_ms: int) -> list[LandedFile]:
    """The files a run over the window that ends then would read; for a dry run."""
    return area.files(end_ms - round(window_seconds * 1000) - TICK_SLACK_MS, end_ms + TICK_SLACK_MS)[0]


def _merge(store: Store, scratch: Scratch, run: LoadRun) -> MergeResult:
    changes, heard = scratch.read("changes", CHANGE_SCHEMA), scratch.read("heard", SOURCE_SCHEMA)
    with store.transaction() as tx:
        return loads.stage_and_merge(tx, run, changes, heard)
