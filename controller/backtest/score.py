"""The cost of a simulated rule, in figures that can be compared.

The cost J is in segment-hours: the hours of all segments, plus a price for each hour and capacity of load above the
segments' capacities, plus a price for each segment added or removed. A price for the sealed width of the ring can be
added. J ÷ J*, the regret, compares it with the least possible cost (`optimum`). One number hides the trade-off, so
the hours and the overload are reported as well.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from controller.backtest.arrays import Wholes
from controller.backtest.longest_silence import longest_silence_seconds
from controller.backtest.simulation import Act, Simulation
from controller.domain.errors import InvalidInput
from controller.domain.hash_range import RING_SIZE
from controller.domain.reshape import ReshapeKind

REVERSAL_SECONDS = 1_800
"""Seconds after a change within which a change in the other direction counts as a reversal."""

USELESS_PART = 0.05
"""Part of the parent's load that a split must take off the child with the most load, so that the split does not count as
useless.
"""


@dataclass(frozen=True, slots=True)
class Prices:
    """The weights of J. `excess`: segment-hours for an hour of one capacity too much. `change_seconds`: segment-seconds
    for a segment added or removed. `reseal_seconds`: segment-seconds for sealing the whole ring once. Raises
    InvalidInput for a price below 0 or NaN.
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
    load. `excess_hours`: load above the segments' capacities, in capacities × hours. `overload_seconds`: time in which
    any segment was above its capacity; `overloaded_segment_seconds` adds this time up over the segments.
    `most_segments`: the largest number of segments at one time. `rings_resealed`: sealed width, in rings.
    `reconnections`: number of times that a client had to reconnect. `reversals`: number of times that the number of
    segments fell within half an hour after it rose, or rose after it fell. `useless_splits`: splits that left nearly all
    of the load in one child (`USELESS_PART`). `silent_seconds`: the longest time that a segment was hot, or a pair of
    neighbours cold, without an action or a refusal; it must be 0.
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
    """Return the figures of a simulation. Its figures of reshapes count only reshapes that took effect. `prices` None
    stands for the default prices.
    """
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
    """Return the fewest segments that could take the load of each step, if the load could be divided arbitrarily: the
    load in capacities of the rule's split thresholds, rounded up, but at least the policy's `min_segments` and 1.
    """
    load = simulation.series.load(simulation.rule.policy.thresholds.split.rates)
    minimum = max(1, simulation.rule.policy.min_segments)
    return np.maximum(np.ceil(load), minimum).astype(np.int64)


def _reversals(changed: Wholes, step_seconds: int) -> int:
    """Return the number of changes that go in the other direction than the preceding change, at most `REVERSAL_SECONDS`
    after it. `changed` is the change of the number of segments at each step; 0 at a step is no change.
    """
    steps = np.flatnonzero(changed)
    is_opposite = np.sign(changed[steps[1:]]) != np.sign(changed[steps[:-1]])
    is_soon = np.diff(steps) * step_seconds <= REVERSAL_SECONDS
    return int(np.count_nonzero(is_opposite & is_soon))


def _is_useless(act: Act) -> bool:
    """Return True for a split of which one child takes over more than 1 - `USELESS_PART` of the parent's load.
    False without load, and for other actions.
    """
    if act.kind is not ReshapeKind.SPLIT:
        return False
    parent_load = sum(act.child_loads)
    return parent_load > 0 and parent_load - max(act.child_loads) < USELESS_PART * parent_load
