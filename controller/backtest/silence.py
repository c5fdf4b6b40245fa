"""How long a rule left something hot or cold alone without saying why: the longest such time must be 0.

At a tick a segment is hot when its load is above its capacity, and two neighbours are cold when both are below all
merge thresholds. An act has begun on it or is under way; or a refusal names it; or a refusal is of the whole topic. A
refusal of two segments is of all from one to the other. A pair is spoken of when each side is, in the merge lane: a rule
that weighs runs of segments does not say of each two neighbours what it said of the run that either is in.
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
    """Over all segments and pairs of neighbours; a run of silent ticks counts from its first to past its last."""
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
    """Ticks `first` to before `end`, through which layout, verdict and acts under way stay as they are."""

    first: int
    end: int
    stretch: Stretch
    verdict: Verdict
    busy: frozenset[int]


def _spans(simulation: Simulation) -> Iterator[_Span]:
    """In order of time. A layout counts from the first tick that ends after it began."""
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
    """For each segment that was hot and each pair that was cold without a word: at which of the ticks."""
    ticks = slice(span.first, span.end)
    shares = simulation.shares(span.stretch, ticks)
    hot = simulation.tick_load[ticks, None] * shares > 1.0
    cold = simulation.tick_warmth[ticks, None] * shares < 1.0
    pairs = cold[:, :-1] & cold[:, 1:]
    ids = span.stretch.ids
    found: dict[tuple[int, ...], Mask] = {}
    if not hot.any() and not pairs.any():
        return found
    words = _Words(ids, span)
    for place in np.flatnonzero(hot.any(axis=0)).tolist():
        if not words.on(place):
            found[(ids[place],)] = hot[:, place]
    for place in np.flatnonzero(pairs.any(axis=0)).tolist():
        if not words.on_both(place):
            found[ids[place : place + 2]] = pairs[:, place]
    return found


class _Words:
    """What a verdict said of the segments of a layout; ids of segments that are gone mean nothing."""

    def __init__(self, ids: Sequence[int], span: _Span) -> None:
        self.ids = ids
        place = {segment_id: index for index, segment_id in enumerate(ids)}
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
            if refusal.segment_id in place and refusal.other_id in place:
                ends = place[refusal.segment_id], place[refusal.other_id]
                self.runs.append((min(ends), max(ends)))
                if refusal.lane in {None, Lane.MERGE}:
                    self.spared.update(range(min(ends), max(ends) + 1))

    def on(self, place: int) -> bool:
        """Whether a hot segment was acted on, or spoken of."""
        segment_id = self.ids[place]
        return (
            segment_id in self.touched
            or segment_id in self.named
            or any(low <= place <= high for low, high in self.runs)
            or not self.of_topic.isdisjoint({None, Lane.LOAD})
        )

    def on_both(self, place: int) -> bool:
        """Whether a side of a cold pair was acted on or spoken of alone, or both together."""
        sides = self.ids[place : place + 2]
        return (
            not self.touched.isdisjoint(sides)
            or not self.alone.isdisjoint(sides)
            or self.spared.issuperset((place, place + 1))
            or not self.of_topic.isdisjoint({None, Lane.MERGE})
        )


def _is_alone(refusal: Refusal) -> bool:
    return refusal.segment_id is not None and refusal.other_id is None
