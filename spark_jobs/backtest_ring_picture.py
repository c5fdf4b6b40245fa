"""Data for a report's picture of the ring over time in one simulation, as JSON values: reduced to cells of time.

Times are milliseconds since the Unix epoch, loads are in segments' capacities.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from controller.backtest.arrays import Floats
from controller.backtest.simulation import Simulation, Stretch
from controller.domain.hash_range import HashRange

COLUMNS = 96
"""Maximum number of cells of a segment that lives from the first step to the last one."""
CELLS = 1_000
"""Approximate maximum number of cells of all segments, if that is possible with cells that are shorter than the series."""
SEGMENTS = 1_000
"""Maximum number of segments; the first ones are kept."""


def ring(run: Simulation, load: Floats) -> dict[str, Any]:
    """Return the segments with their lifetimes, and the highest load of each segment in each cell of time: `segments`
    has rows of id, first and last hash, begin and end in milliseconds since the Unix epoch; `loads` has rows of id,
    number of the cell and load, sorted by id and cell; `cell_ms` is the length of a cell. Only the first `SEGMENTS`
    segments are included, in the order of creation; the end of a segment that is still active is the end of the series.

    `load[step]` is the topic's load in segments' capacities. Cells are numbered from the Unix epoch.
    """
    lives = dict(list(_lives(run).items())[:SEGMENTS])
    cell_ms = _cell_ms(run, lives)
    highest: dict[tuple[int, int], float] = {}
    for stretch, end in _stretches(run):
        for segment_id, cell, ratio in _highest(run, load, stretch, end, cell_ms):
            if segment_id in lives:
                key = segment_id, cell
                highest[key] = max(highest.get(key, 0.0), ratio)
    return {
        "cell_ms": cell_ms,
        "segments": [
            [segment_id, hashes.start, hashes.end, _at(run, begins), _at(run, ends)]
            for segment_id, (hashes, begins, ends) in lives.items()
        ],
        "loads": [[*key, round(ratio, 3)] for key, ratio in sorted(highest.items())],
    }


def _at(run: Simulation, step: int) -> int:
    """Return the time at which the step begins, in milliseconds since the Unix epoch."""
    return run.series.start_ms + step * run.series.step_seconds * 1000


def _stretches(run: Simulation) -> Iterator[tuple[Stretch, int]]:
    """Yield each stretch (steps with one layout) that has a step, with the step before which it ends."""
    ends = [*(stretch.begins for stretch in run.stretches[1:]), run.series.steps]
    return ((stretch, end) for stretch, end in zip(run.stretches, ends, strict=True) if end > stretch.begins)


def _lives(run: Simulation) -> dict[int, tuple[HashRange, int, int]]:
    """Return, by segment id, the hash range of each segment, the first step at which the segment is active, and the
    step before which it ends. For a segment that is active at the end of the series, the latter is the number of
    steps. Steps are counted from 0.

    The segments are in the order in which they became active, and in the order of their ranges if they became active
    at the same step. A segment that was not active at any step is absent, because it was replaced at the step at
    which it was created, or was created after the last step.
    """
    lives: dict[int, tuple[HashRange, int, int]] = {}
    for stretch, end in _stretches(run):
        for segment_id, hashes in zip(stretch.ids, stretch.ranges, strict=True):
            begins = lives[segment_id][1] if segment_id in lives else stretch.begins
            lives[segment_id] = hashes, begins, end
    return lives


def _cell_ms(run: Simulation, lives: dict[int, tuple[HashRange, int, int]]) -> int:
    """Return the length of a cell in milliseconds, a multiple of a step: no segment has more than about `COLUMNS` cells, and
    all segments together have at most about `CELLS`, unless a cell is already as long as the series. `lives` is the result
    of `_lives`, or a part of it.
    """
    every = -(-run.series.steps // COLUMNS)
    while every < run.series.steps and sum((e - b) // every + 1 for _, b, e in lives.values()) > CELLS:
        every *= 2
    return every * run.series.step_seconds * 1000


def _highest(
    run: Simulation, load: Floats, stretch: Stretch, end: int, cell_ms: int
) -> Iterator[tuple[int, int, float]]:
    """Yield the highest load of each segment of a stretch in each cell, as segment id, number of the cell and load. `load[step]` is the
    topic's load in segments' capacities. The stretch ends before step `end`. Cells are numbered from the Unix epoch. A step counts only
    in the cell in which it begins; a cell in which no step of the stretch begins has load 0.
    """
    span = slice(stretch.begins, end)
    loads = load[span, None] * run.spread.shares(stretch.ranges, span)
    first, last = _at(run, stretch.begins) // cell_ms, _at(run, end - 1) // cell_ms
    step_ms = run.series.step_seconds * 1000
    edges = [
        max(0, -(-(cell * cell_ms - _at(run, stretch.begins)) // step_ms)) for cell in range(first, last + 1)
    ]
    for cell, (begins, ends) in zip(range(first, last + 1), pairwise([*edges, len(loads)]), strict=True):
        peaks = loads[begins:ends].max(axis=0, initial=0.0)
        yield from (
            (segment_id, cell, float(peak)) for segment_id, peak in zip(stretch.ids, peaks, strict=True)
        )
