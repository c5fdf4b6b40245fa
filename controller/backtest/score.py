"""What a simulated rule cost, in figures that can be compared.

The cost J is in segment-hours: the hours of all segments, plus a price for each hour and capacity of load above what the
segments can take, plus a price for each segment added or removed; a price for the width of the ring that was sealed can
be set beside them. J ÷ J*, the regret, compares it to the least possible (`optimum`). One number hides what was traded
for what, so the hours and the overload are reported beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from controller.backtest.arrays import Wholes
from controller.backtest.silence import longest_silence_seconds
from controller.backtest.simulation import Act, Simulation
from controller.domain.errors import InvalidInput
from controller.domain.hash_range import RING_SIZE
from controller.domain.reshape import ReshapeKind

REVERSAL_SECONDS = 1_800
"""A change of direction counts as a reversal when it comes so soon after the change before it."""

USELESS_PART = 0.05
"""A split is useless when what it takes off the part with the most load is less than this part of the parent's."""


@dataclass(frozen=True, slots=True)
class Prices:
    """The weights of J. `excess`: segment-hours for an hour of one capacity too much. `change_seconds`: segment-seconds
    for a segment added or removed. `reseal_seconds`: segment-seconds for the whole ring sealed once. Raises InvalidInput
    for a price below 0.
    """

    excess: float = 20.0
    change_seconds: float = 60.0
    reseal_seconds: float = 0.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            price = getattr(self, name)
            if not price >= 0:
                raise InvalidInput(f"price {name} = {price}; give 0 or more")


@dataclass(frozen=True, slots=True)
class Score:
    """Figures of one simulation. Hours and seconds are of the simulated time.

    `cost` is J in segment-hours. `over_provisioned_hours`: segment-hours beyond the fewest segments that could take the
    load. `overload_seconds`: while any segment was above its capacity; `overloaded_segment_seconds` adds them up over the
    segments. `rings_resealed`: width that was sealed, in rings. `reversals`: a count that fell within half an hour of
    having risen, or the other way round. `silent_seconds`: the longest time that a segment was hot, or a pair of
    neighbours cold, with neither an act nor a reason; it must be 0.
    """

    cost: float
    segment_hours: float
    over_provisioned_hours: float
    excess_hours: float
    overload_seconds: float
    overloaded_segment_seconds: float
    most_segments: int
    reshapes: int
    rings_resealed: float
    reconnections: int
    reversals: int
    useless_splits: int
    silent_seconds: float


def score(simulation: Simulation, prices: Prices | None = None) -> Score:
    """Counts everything once."""
    prices = prices or Prices()
    step = simulation.series.step_seconds
    segments = simulation.segments
    changed = np.diff(segments, prepend=simulation.conditions.initial_segments)
    segment_hours = float(segments.sum()) * step / 3600
    excess_hours = float(simulation.excess.sum()) * step / 3600
    rings = sum(r.width for act in simulation.acts for r in act.parents) / RING_SIZE
    paid_seconds = prices.change_seconds * float(np.abs(changed).sum()) + prices.reseal_seconds * rings
    return Score(
        cost=segment_hours + prices.excess * excess_hours + paid_seconds / 3600,
        segment_hours=segment_hours,
        over_provisioned_hours=float(np.maximum(segments - _fewest(simulation), 0).sum()) * step / 3600,
        excess_hours=excess_hours,
        overload_seconds=float((simulation.overloaded > 0).sum()) * step,
        overloaded_segment_seconds=float(simulation.overloaded.sum()) * step,
        most_segments=int(segments.max()),
        reshapes=len(simulation.acts),
        rings_resealed=rings,
        reconnections=sum(act.reconnections for act in simulation.acts),
        reversals=_reversals(changed, step),
        useless_splits=sum(map(_is_useless, simulation.acts)),
        silent_seconds=longest_silence_seconds(simulation),
    )


def _fewest(simulation: Simulation) -> Wholes:
    """The fewest segments that could take the load of each step, if it could be divided at will."""
    load = simulation.series.load(simulation.rule.policy.thresholds.split.rates)
    least = max(1, simulation.rule.policy.min_segments)
    return np.maximum(np.ceil(load), least).astype(np.int64)


def _reversals(changed: Wholes, step_seconds: int) -> int:
    at = np.flatnonzero(changed)
    turned = np.sign(changed[at[1:]]) != np.sign(changed[at[:-1]])
    soon = np.diff(at) * step_seconds <= REVERSAL_SECONDS
    return int(np.count_nonzero(turned & soon))


def _is_useless(act: Act) -> bool:
    if act.kind is not ReshapeKind.SPLIT:
        return False
    total = sum(act.child_loads)
    return total > 0 and total - max(act.child_loads) < USELESS_PART * total
