"""The least any rule can pay, known afterwards: what a policy's cost is held against.

Where load can be divided at will, only the number of segments counts. `lower_bound` finds the best course of that number
exactly, so no layout of any kind is cheaper: it is a lower bound for every rule, and that is J*.

Where it is known how the keys are spread, more can be said (`bounds`). What a single hash has above a segment's capacity
no partition removes (the slot floor). Some segment has at least the smallest maximum of any contiguous partition into as
many parts. Both raise the lower bound. And the partitions that have this maximum make an upper bound: what somebody who
knows the future pays, who goes from one of them to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from controller.backtest.arrays import Floats
from controller.backtest.load_series import LoadSeries
from controller.backtest.partition import cuts, smallest_maxima
from controller.backtest.score import Prices
from controller.backtest.spread import Spread
from controller.domain.errors import InvalidInput
from controller.domain.hash_range import RING_SIZE


def lower_bound(
    loads: Floats,
    prices: Prices,
    *,
    step_seconds: int,
    most_segments: int,
    least_segments: int = 1,
    first: int = 1,
) -> Floats:
    """Least cost in segment-hours for `loads[topic, step]` (or one topic's `[step]`), in capacities.

    The number of segments n is free at every step, from `first` before the first one. A step costs its length times
    (n + price of excess · what of the load is above n); each segment added or removed costs its own price. The price of
    width that is sealed plays no part: counts alone do not tell it. Since the price of changes is convex, the best
    predecessor of every n is a prefix or a suffix minimum: time × segments in all.
    """
    rows = np.atleast_2d(loads)
    top = max(least_segments, first, min(most_segments, int(np.ceil(rows.max(initial=0.0)))))
    counts = np.arange(least_segments, top + 1, dtype=np.float64)
    course = _Course(counts, len(rows), prices, step_seconds, first)
    for load in rows.T:
        course.step(np.maximum(load[:, None] - counts, 0.0))
    return course.best()


class _Course:
    """The cheapest way to be at each count by now, for several topics side by side."""

    def __init__(self, counts: Floats, topics: int, prices: Prices, step_seconds: int, first: int) -> None:
        self.change = prices.change_seconds * counts
        self.standing = step_seconds * counts
        self.excess_price = step_seconds * prices.excess
        self.held = np.full((topics, len(counts)), np.inf)
        self.held[:, max(first - int(counts[0]), 0)] = 0.0

    def move(self, price: float = 0.0) -> None:
        """Any change of the count, for `price` and what each segment costs."""
        from_below = np.minimum.accumulate(self.held - self.change, axis=1) + self.change
        above = (self.held + self.change)[:, ::-1]
        from_above = np.minimum.accumulate(above, axis=1)[:, ::-1] - self.change
        moved = np.minimum(from_below, from_above)
        self.held = np.minimum(self.held, moved + price) if price else moved

    def step(self, excess: Floats, price: float = 0.0) -> None:
        """One step: `excess[topic, count]` in capacities."""
        self.move(price)
        self.held = self.held + self.standing + self.excess_price * excess

    def best(self) -> Floats:
        """Segment-hours."""
        least: Floats = self.held.min(axis=1) / 3600.0
        return least


@dataclass(frozen=True, slots=True)
class Bounds:
    """Segment-hours between which the best possible cost lies, and the excess (hours of one capacity) that no partition
    removes.
    """

    lower: float
    upper: float
    floor_hours: float


def slot_floor(series: LoadSeries, split_rates: Sequence[float]) -> Floats:
    """For each step, what single hashes have above one capacity, added up. 0 where keys are spread evenly."""
    load = series.load(split_rates)
    if series.shares is None:
        return np.maximum(load / RING_SIZE - 1.0, 0.0) * RING_SIZE
    hashes = RING_SIZE / series.shares.shape[1]
    highest = np.sort(series.shares / hashes, axis=1)[:, ::-1]
    found = np.zeros(len(load))
    for share in highest.T:
        over = np.maximum(load * share - 1.0, 0.0)
        if not over.any():
            break
        found += over * hashes
    return found


def bounds(
    series: LoadSeries,
    split_rates: Sequence[float],
    prices: Prices,
    *,
    most_segments: int,
    least_segments: int = 1,
    first: int = 1,
) -> Bounds:
    """Between what and what the best possible cost lies, for one topic whose keys are spread the same at all times.

    Raises InvalidInput for a spread that changes from step to step: use `lower_bound`, and `slot_floor` beside it.
    """
    spread = Spread.of(series)
    if not spread.is_steady:
        raise InvalidInput(
            f"the spread of {series.name} changes from step to step; ask for its lower bound only"
        )
    load, floor = series.load(split_rates), slot_floor(series, split_rates)
    counts = np.arange(least_segments, most_segments + 1)
    below = spread.below_hashes()
    least_max, best_max = smallest_maxima(below, most_segments)
    parts = [np.diff(below[[0, *cuts(below, limit), RING_SIZE]]) for limit in best_max[least_segments - 1 :]]
    lower = _Course(counts.astype(np.float64), 1, prices, series.step_seconds, first)
    upper = _Course(counts.astype(np.float64), 1, prices, series.step_seconds, first)
    least_shares = least_max[least_segments - 1 :]
    for total, unremovable in zip(load.tolist(), floor.tolist(), strict=True):
        by_count = unremovable + np.maximum(total - unremovable - counts, 0.0)
        lower.step(np.maximum(by_count, total * least_shares - 1.0)[None, :])
    had = np.array([np.maximum(load[:, None] * one - 1.0, 0.0).sum(axis=1) for one in parts]).T
    for excess in had:
        upper.step(excess[None, :], prices.reseal_seconds)
    floor_hours = float(floor.sum()) * series.step_seconds / 3600
    return Bounds(float(lower.best()[0]), float(upper.best()[0]), floor_hours)
