"""The longest time for which a rule left a hot or cold segment unchanged without a refusal; it must be 0.

At a tick a segment is hot if its load is above its capacity, and two neighbours are cold if both are below all merge
thresholds. The segment is accounted for if an action has begun on it or is running, if a refusal names it, or if a
refusal refers to the whole topic. A refusal of two segments refers to all from one to the other. A pair is accounted
for if each side is, in the merge lane: a rule that weighs runs of segments does not repeat for each two neighbours
its refusal of the run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from controller.backtest.arrays import Mask
from controller.backtest.simulation import Simulation, Stretch, Verdict
from controller.domain.decision import Lane, Refusal, sealed_by


def longest_silence_seconds(simulation: Simulation) -> float:
    """Return the longest silence over all segments and pairs of neighbours; a run of silent ticks counts from its first
    to past its last.
    """
    lasting: dict[tuple[int, ...], int] = {}
    longest = 0
    for span in _spans(simulation):
        silent = _silent(simulation, span)
        before, lasting = lasting, {}
        for key, ticks in silent.items():
            run = before.get(key, 0)
            for is_silent in ticks.tolist():
                run = run + 1 if is_silent else 0
                longest = max(longest, run)
            if run:
                lasting[key] = run
    return float(longest * simulation.conditions.tick_seconds)


@dataclass(frozen=True, slots=True)
class _Span:
    """Ticks `first` to before `end`, in which layout, evaluation and running actions stay the same."""

    first: int
    end: int
    stretch: Stretch
    verdict: Verdict
    busy: frozenset[int]


def _spans(simulation: Simulation) -> Iterator[_Span]:
    """Yield the spans in the order of time. A layout counts from the first tick that ends after it began."""
    per_tick = simulation.conditions.tick_seconds // simulation.series.step_seconds
    ticks = simulation.series.steps // per_tick
    stretches = [(stretch.begins // per_tick, stretch) for stretch in simulation.stretches]
    verdicts = [(verdict.step // per_tick, verdict) for verdict in simulation.verdicts]
    bounds = {0, ticks, *(at for at, _ in stretches), *(at for at, _ in verdicts)}
    begun: dict[int, set[int]] = defaultdict(set)
    ended: dict[int, set[int]] = defaultdict(set)
    for act in simulation.acts:
        begun[act.asked // per_tick].update(act.parent_ids)
        ended[act.begins // per_tick].update(act.parent_ids)
    bounds |= {*begun, *ended}
    layout = answer = -1
    busy: set[int] = set()
    for first, end in pairwise(sorted(bound for bound in bounds if bound <= ticks)):
        while layout + 1 < len(stretches) and stretches[layout + 1][0] <= first:
            layout += 1
        while answer + 1 < len(verdicts) and verdicts[answer + 1][0] <= first:
            answer += 1
        busy |= begun[first]
        busy -= ended[first]
        yield _Span(first, end, stretches[layout][1], verdicts[answer][1], frozenset(busy))


def _silent(simulation: Simulation, span: _Span) -> dict[tuple[int, ...], Mask]:
    """Return, for each hot segment and each cold pair without an action or refusal, the ticks of which this is true."""
    ticks = slice(span.first, span.end)
    shares = simulation.shares(span.stretch, ticks)
    hot = simulation.tick_load[ticks, None] * shares > 1.0
    cold = simulation.tick_warmth[ticks, None] * shares < 1.0
    pairs = cold[:, :-1] & cold[:, 1:]
    ids = span.stretch.ids
    silent: dict[tuple[int, ...], Mask] = {}
    if not hot.any() and not pairs.any():
        return silent
    account = _Account(ids, span)
    for index in np.flatnonzero(hot.any(axis=0)).tolist():
        if not account.on(index):
            silent[(ids[index],)] = hot[:, index]
    for index in np.flatnonzero(pairs.any(axis=0)).tolist():
        if not account.on_both(index):
            silent[ids[index : index + 2]] = pairs[:, index]
    return silent


class _Account:
    """The segments of a layout that an evaluation accounts for; ids of segments that no longer exist are ignored."""

    def __init__(self, ids: Sequence[int], span: _Span) -> None:
        self.ids = ids
        indexes = {segment_id: index for index, segment_id in enumerate(ids)}
        evaluation = span.verdict.evaluation
        self.touched = span.busy | {i for act in evaluation.decisions for i in sealed_by(act)}
        self.alone = {refusal.segment_id for refusal in evaluation.refusals if _is_alone(refusal)}
        self.of_topic = {refusal.lane for refusal in evaluation.refusals if refusal.segment_id is None}
        self.named = {refusal.segment_id for refusal in evaluation.refusals} | {
            refusal.other_id for refusal in evaluation.refusals
        }
        self.runs: list[tuple[int, int]] = []
        self.spared: set[int] = set()
        for refusal in evaluation.refusals:
            if refusal.segment_id in indexes and refusal.other_id in indexes:
                ends = indexes[refusal.segment_id], indexes[refusal.other_id]
                self.runs.append((min(ends), max(ends)))
                if refusal.lane in {None, Lane.MERGE}:
                    self.spared.update(range(min(ends), max(ends) + 1))

    def on(self, index: int) -> bool:
        """Return True if a hot segment has an action or a refusal."""
        segment_id = self.ids[index]
        return (
            segment_id in self.touched
            or segment_id in self.named
            or any(low <= index <= high for low, high in self.runs)
            or not self.of_topic.isdisjoint({None, Lane.LOAD})
        )

    def on_both(self, index: int) -> bool:
        """Return True if a side of a cold pair has an action or a refusal by itself, or both sides have one together."""
        sides = self.ids[index : index + 2]
        return (
            not self.touched.isdisjoint(sides)
            or not self.alone.isdisjoint(sides)
            or self.spared.issuperset((index, index + 1))
            or not self.of_topic.isdisjoint({None, Lane.MERGE})
        )


def _is_alone(refusal: Refusal) -> bool:
    return refusal.segment_id is not None and refusal.other_id is None
