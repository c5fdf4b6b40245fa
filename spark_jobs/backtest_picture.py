"""Data for a report's charts of one simulation, as JSON values: reduced, so that a page of many weeks can be opened.

`ring` is the picture of the ring over time, reduced to cells of time. Times are milliseconds since the Unix epoch, loads are in segments'
capacities.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from controller.backtest.arrays import Floats, Wholes
from controller.backtest.optimum import lower_bound
from controller.backtest.score import Prices
from controller.backtest.simulation import Act, Simulation, Stretch, Verdict, spans_of
from controller.domain.hash_range import HashRange
from controller.domain.load_record import LoadStats

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
    for stretch, span in spans_of(run.stretches, run.series.steps):
        for segment_id, cell, ratio in _highest(run, load, stretch, span, cell_ms):
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


def _lives(run: Simulation) -> dict[int, tuple[HashRange, int, int]]:
    """Return, by segment id, the hash range of each segment, the first step at which the segment is active, and the
    step before which it ends. For a segment that is active at the end of the series, the latter is the number of
    steps. Steps are counted from 0.

    The segments are in the order in which they became active, and in the order of their ranges if they became active
    at the same step. A segment that was not active at any step is absent, because it was replaced at the step at
    which it was created, or was created after the last step.
    """
    lives: dict[int, tuple[HashRange, int, int]] = {}
    for stretch, span in spans_of(run.stretches, run.series.steps):
        for segment_id, hashes in zip(stretch.ids, stretch.ranges, strict=True):
            begins = lives[segment_id][1] if segment_id in lives else stretch.begins
            lives[segment_id] = hashes, begins, span.stop
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
    run: Simulation, load: Floats, stretch: Stretch, span: slice, cell_ms: int
) -> Iterator[tuple[int, int, float]]:
    """Yield the highest load of each segment of a stretch in each cell, as segment id, number of the cell and load. `load[step]` is the
    topic's load in segments' capacities. `span` has the steps of the stretch. Cells are numbered from the Unix epoch. A step counts only
    in the cell in which it begins; a cell in which no step of the stretch begins has load 0.
    """
    loads = load[span, None] * run.spread.shares(stretch.ranges, span)
    first, last = _at(run, stretch.begins) // cell_ms, _at(run, span.stop - 1) // cell_ms
    step_ms = run.series.step_seconds * 1000
    edges = [
        max(0, -(-(cell * cell_ms - _at(run, stretch.begins)) // step_ms)) for cell in range(first, last + 1)
    ]
    for cell, (begins, ends) in zip(range(first, last + 1), pairwise([*edges, len(loads)]), strict=True):
        peaks = loads[begins:ends].max(axis=0, initial=0.0)
        yield from (
            (segment_id, cell, float(peak)) for segment_id, peak in zip(stretch.ids, peaks, strict=True)
        )


POINTS = 2_000
"""Maximum number of points of a line; each point is the largest value of its interval."""
ACTS = 1_000
"""Maximum number of actions; the first ones are kept."""
SPANS = 400
"""Maximum number of spans of refusals with one reason; the longest are kept."""


def picture(run: Simulation, capacity: LoadStats) -> dict[str, Any]:
    """Return the data of the chart of one simulation, as JSON values by name.

    `load` (of the topic), `segments` (their number) and `max_load` (of a segment) are lines of up to POINTS points,
    one for each `step_ms` milliseconds from `start_ms` (milliseconds since the Unix epoch) on. A point is the largest
    value of its interval. `acts` has the first ACTS actions as `_act` describes them, and `more_acts` is the number
    of actions that are left out. `refusals` is the result of `_refusals`, and `ring` that of `ring`.

    `capacity`: the rates that one segment can carry; `load` is counted in this capacity. `max_load` is taken from
    `run`, which must have the same capacity.
    """
    step_ms = run.series.step_seconds * 1000
    every = -(-run.series.steps // POINTS)
    load = run.series.load(capacity.rates)
    return {
        "start_ms": run.series.start_ms,
        "step_ms": step_ms * every,
        "load": _thin(load, every),
        "segments": _thin(run.segments, every),
        "max_load": _thin(run.max_load, every),
        "acts": [_act(run, act) for act in run.acts[:ACTS]],
        "more_acts": max(0, len(run.acts) - ACTS),
        "refusals": _refusals(run),
        "ring": ring(run, load),
    }


def _thin(values: Floats | Wholes, every: int) -> list[float]:
    """Return the largest of each `every` consecutive values, rounded to 3 places; the last group may be shorter."""
    edges = np.arange(0, len(values), every)
    return [round(float(value), 3) for value in np.maximum.reduceat(values, edges)]


def _act(run: Simulation, act: Act) -> dict[str, Any]:
    """Return the chart's entry of an action: the time at which it takes effect, its kind and reason, the numbers of segments before and
    after, and their hash range.
    """
    return {
        "at": run.series.start_ms + act.begins * run.series.step_seconds * 1000,
        "kind": act.kind.value,
        "from": len(act.parents),
        "to": len(act.children),
        "range": f"{act.parents[0].start:04x}-{act.parents[-1].end:04x}",
        "reason": act.reason,
    }


def _refusals(run: Simulation) -> dict[str, list[tuple[int, int]]]:
    """Return, for each reason of a refusal, the spans of time in which evaluations had a refusal with this reason,
    for any segment. A span is a pair of begin and end in milliseconds since the Unix epoch.

    A span begins at the start of the step of its first evaluation. The span ends at the start of the step of the next
    evaluation without the reason, or at the end of the series. At most SPANS spans of a reason are kept: the longest
    ones, and the earliest ones among spans of the same length. The spans of a reason are in the order of time, and
    the reasons are in alphabetical order. A reason that never occurred is absent.
    """
    step_ms = run.series.step_seconds * 1000
    ends = [*(verdict.step for verdict in run.verdicts), run.series.steps][1:]  # none without a verdict
    spans: dict[str, list[tuple[int, int]]] = {}
    for verdict, end in zip(run.verdicts, ends, strict=True):
        for reason in _reasons(verdict):
            reason_spans = spans.setdefault(reason, [])
            if reason_spans and reason_spans[-1][1] == verdict.step:
                reason_spans[-1] = (reason_spans[-1][0], end)
            else:
                reason_spans.append((verdict.step, end))
    start = run.series.start_ms
    return {
        reason: [(start + begin * step_ms, start + end * step_ms) for begin, end in _longest(reason_spans)]
        for reason, reason_spans in sorted(spans.items())
    }


def _reasons(verdict: Verdict) -> list[str]:
    """Return the reasons of the evaluation's refusals, sorted, each once."""
    return sorted({refusal.reason.value for refusal in verdict.evaluation.refusals})


def _longest(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the SPANS longest spans, of equal ones the earliest, in the order of time. `spans` must be in the order of time."""
    longest = sorted(spans, key=lambda span: span[0] - span[1])[:SPANS]
    return sorted(longest)


WEIGHTS = (1.0, 3.0, 10.0, 20.0, 50.0, 150.0, 500.0)
"""Prices of excess for which the best cost is drawn; the project's figures use 20."""
_STEP = 1e-4


def front(
    loads: Floats, prices: Prices, *, step_seconds: int, most_segments: int, initial_segments: int
) -> list[dict[str, float]]:
    """Return, for each price of excess in WEIGHTS (`weight`), the least cost in segment-hours (`least_cost`) and the excess of the
    cheapest sequence in capacity-hours (`excess_hours`). Of `prices` only `change_seconds` has an effect.

    `loads` are in segments' capacities, one for each step; `initial_segments` is the number of segments at the start, and
    `most_segments` the largest number. The least cost is a concave function of the price, and its slope is the excess of the cheapest
    sequence.
    """

    def least_cost_at(excess: float) -> float:
        prices_with_excess = replace(prices, excess=excess)
        return float(
            lower_bound(
                loads,
                prices_with_excess,
                step_seconds=step_seconds,
                most_segments=most_segments,
                first=initial_segments,
            )[0]
        )

    points = []
    for weight in WEIGHTS:
        low, high = least_cost_at(weight * (1 - _STEP)), least_cost_at(weight * (1 + _STEP))
        points.append(
            {
                "weight": weight,
                "least_cost": (low + high) / 2,
                "excess_hours": max(0.0, (high - low) / (2 * _STEP * weight)),
            }
        )
    return points
