"""The longest time for which a rule left a hot or cold segment unchanged without a refusal; it must be 0.

At a tick a segment is hot if its load is above its capacity, and two neighbours are cold if both are below all merge
thresholds. The segment is accounted for if an action has begun on it or is running, if a refusal names it, or if a
refusal of its lane, or without a lane, refers to the whole topic. A refusal of two segments refers to all from one to
the other. A pair is also accounted for if refusals of two segments cover both sides, in the merge lane: a rule that
weighs runs of segments does not repeat for each two neighbours its refusal of the run.
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
    """Return the longest time, in seconds of simulated time, for which a segment was hot (load above its capacity) or a
    pair of neighbours cold (both below all merge thresholds) without an action or a refusal that accounts for it; 0 if
    there is none. Each tick of a run of such ticks counts in full. At a tick without an observation, no segment is hot or
    cold.
    """
    lengths: dict[tuple[int, ...], int] = {}
    longest = 0
    for span in _spans(simulation):
        silent = _silent(simulation, span)
        earlier_lengths, lengths = lengths, {}
        for key, ticks in silent.items():
            length = earlier_lengths.get(key, 0)
            for is_silent in ticks.tolist():
                length = length + 1 if is_silent else 0
                longest = max(longest, length)
            if length:
                lengths[key] = length
    return float(longest * simulation.conditions.tick_seconds)


@dataclass(frozen=True, slots=True)
class _Span:
    """Ticks `first` to before `end`, in which layout, evaluation and running actions stay the same. `busy`: ids of the segments in running
    actions.
    """

    first: int
    end: int
    stretch: Stretch
    verdict: Verdict
    busy: frozenset[int]


def _spans(simulation: Simulation) -> Iterator[_Span]:
    """Yield the spans in the order of time; together they contain every tick. A span ends where the layout, the evaluation
    or the set of running actions changes. A layout counts from the first tick that ends after it began; of several that
    begin in one tick, the last counts.
    """
    per_tick = simulation.conditions.tick_seconds // simulation.series.step_seconds
    ticks = simulation.series.steps // per_tick
    stretches = [(stretch.begins // per_tick, stretch) for stretch in simulation.stretches]
    verdicts = [(verdict.step // per_tick, verdict) for verdict in simulation.verdicts]
    bounds = {0, ticks, *(at for at, _ in stretches), *(at for at, _ in verdicts)}
    begun: dict[int, set[int]] = defaultdict(set)
    ended: dict[int, set[int]] = defaultdict(set)
    for act in (*simulation.acts, *simulation.running):
        begun[act.asked // per_tick].update(act.parent_ids)
        ended[act.begins // per_tick].update(act.parent_ids)
    bounds |= {*begun, *ended}
    stretch_index = verdict_index = -1
    busy_ids: set[int] = set()
    for first, end in pairwise(sorted(bound for bound in bounds if bound <= ticks)):
        while stretch_index + 1 < len(stretches) and stretches[stretch_index + 1][0] <= first:
            stretch_index += 1
        while verdict_index + 1 < len(verdicts) and verdicts[verdict_index + 1][0] <= first:
            verdict_index += 1
        busy_ids |= begun[first]
        busy_ids -= ended[first]
        yield _Span(first, end, stretches[stretch_index][1], verdicts[verdict_index][1], frozenset(busy_ids))


def _silent(simulation: Simulation, span: _Span) -> dict[tuple[int, ...], Mask]:
    """Return, for each hot segment (load above its capacity) and each cold pair (neighbours below all merge thresholds)
    without an action or refusal, a mask `[tick of the span]` that is True where it is hot or cold. The key is the id of the
    segment, or the two ids of the pair in the order of their ranges; other segments are left out.
    """
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
    """The segments of a layout that an evaluation accounts for, by an action or a refusal; ids of segments that no longer
    exist are ignored. `ids`: the ids of the layout's active segments in the order of their ranges; indexes are indexes of
    this list. `span`: the ticks of the evaluation.
    """

    def __init__(self, ids: Sequence[int], span: _Span) -> None:
        self.ids = ids
        indexes = {segment_id: index for index, segment_id in enumerate(ids)}
        evaluation = span.verdict.evaluation
        self.acted_on = span.busy | {i for act in evaluation.decisions for i in sealed_by(act)}
        self.single_ids = {refusal.segment_id for refusal in evaluation.refusals if _is_alone(refusal)}
        self.topic_lanes = {refusal.lane for refusal in evaluation.refusals if refusal.segment_id is None}
        self.named_ids = {refusal.segment_id for refusal in evaluation.refusals} | {
            refusal.other_id for refusal in evaluation.refusals
        }
        self.runs: list[tuple[int, int]] = []
        self.merge_indexes: set[int] = set()
        for refusal in evaluation.refusals:
            if refusal.segment_id in indexes and refusal.other_id in indexes:
                ends = indexes[refusal.segment_id], indexes[refusal.other_id]
                self.runs.append((min(ends), max(ends)))
                if refusal.lane in {None, Lane.MERGE}:
                    self.merge_indexes.update(range(min(ends), max(ends) + 1))

    def on(self, index: int) -> bool:
        """Return True if an action or a refusal accounts for the hot segment at this index: an action on it, a
        refusal that names it or names segments on both sides of it, in any lane, or a refusal of the whole topic in
        the load lane or without a lane.
        """
        segment_id = self.ids[index]
        return (
            segment_id in self.acted_on
            or segment_id in self.named_ids
            or any(low <= index <= high for low, high in self.runs)
            or not self.topic_lanes.isdisjoint({None, Lane.LOAD})
        )

    def on_both(self, index: int) -> bool:
        """Return True if the cold pair at `index` and `index + 1` is accounted for: by an action on either side, by a
        refusal that names one side alone, by refusals of two segments in the merge lane that together cover both
        sides, or by a refusal of the whole topic in the merge lane. A refusal without a lane counts for the merge lane.
        """
        pair_ids = self.ids[index : index + 2]
        return (
            not self.acted_on.isdisjoint(pair_ids)
            or not self.single_ids.isdisjoint(pair_ids)
            or self.merge_indexes.issuperset((index, index + 1))
            or not self.topic_lanes.isdisjoint({None, Lane.MERGE})
        )


def _is_alone(refusal: Refusal) -> bool:
    """Return True if the refusal names exactly one segment."""
    return refusal.segment_id is not None and refusal.other_id is None
