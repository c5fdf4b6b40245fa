"""The least cost that any rule can have, computed afterwards: the reference for a policy's cost.

If load can be divided arbitrarily, only the number of segments matters. `lower_bound` finds the cheapest sequence of
this number exactly, so no layout of any kind is cheaper: it is a lower bound for every rule, called J*.

If the distribution of the keys is known, `bounds` gives tighter bounds. No partition removes the load of a single
hash above a segment's capacity (the slot floor). Some segment has at least the smallest maximum of any contiguous
partition into the same number of parts. Both raise the lower bound. The partitions with this maximum give an upper
bound: the cost of a controller that knows the future and changes from one of these partitions to the next.
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
    """Return the least cost in segment-hours for `loads[topic, step]` (or one topic's `[step]`), in capacities.

    The number of segments n is free at every step; before the first step it is `first`. A step costs its length times
    (n + price of excess · load above n); each segment added or removed costs its own price. The price of the sealed
    width is not included, because it does not follow from the numbers alone. Since the price of changes is convex,
    the best predecessor of every n is a prefix or a suffix minimum, so the computation takes time × segments in
    total.
    """
    rows = np.atleast_2d(loads)
    top = max(least_segments, first, min(most_segments, int(np.ceil(rows.max(initial=0.0)))))
    counts = np.arange(least_segments, top + 1, dtype=np.float64)
    course = _Course(counts, len(rows), prices, step_seconds, first)
    for load in rows.T:
        course.step(np.maximum(load[:, None] - counts, 0.0))
    return course.best()


class _Course:
    """The least cost to have each number of segments at the current step, for several topics at once."""

    def __init__(self, counts: Floats, topics: int, prices: Prices, step_seconds: int, first: int) -> None:
        self.change = prices.change_seconds * counts
        self.standing = step_seconds * counts
        self.excess_price = step_seconds * prices.excess
        self.held = np.full((topics, len(counts)), np.inf)
        self.held[:, max(first - int(counts[0]), 0)] = 0.0

    def move(self, price: float = 0.0) -> None:
        """Allow any change of the number, for `price` plus the cost per segment."""
        from_below = np.minimum.accumulate(self.held - self.change, axis=1) + self.change
        above = (self.held + self.change)[:, ::-1]
        from_above = np.minimum.accumulate(above, axis=1)[:, ::-1] - self.change
        moved = np.minimum(from_below, from_above)
        self.held = np.minimum(self.held, moved + price) if price else moved

    def step(self, excess: Floats, price: float = 0.0) -> None:
        """Add one step: `excess[topic, count]` in capacities."""
        self.move(price)
        self.held = self.held + self.standing + self.excess_price * excess

    def best(self) -> Floats:
        """Return the least cost in segment-hours."""
        least: Floats = self.held.min(axis=1) / 3600.0
        return least


@dataclass(frozen=True, slots=True)
class Bounds:
    """Segment-hours between which the least possible cost lies, and the excess (hours of one capacity) that no partition
    removes.
    """

    lower: float
    upper: float
    floor_hours: float


def slot_floor(series: LoadSeries, split_rates: Sequence[float]) -> Floats:
    """Return, for each step, the sum of the loads of single hashes above one capacity. Keys without a known distribution
    count as even.
    """
    load = series.load(split_rates)
    if series.shares is None:
        return np.maximum(load / RING_SIZE - 1.0, 0.0) * RING_SIZE
    hashes = RING_SIZE / series.shares.shape[1]
    highest = np.sort(series.shares / hashes, axis=1)[:, ::-1]
    floor = np.zeros(len(load))
    for share in highest.T:
        over = np.maximum(load * share - 1.0, 0.0)
        if not over.any():
            break
        floor += over * hashes
    return floor


def bounds(
    series: LoadSeries,
    split_rates: Sequence[float],
    prices: Prices,
    *,
    most_segments: int,
    least_segments: int = 1,
    first: int = 1,
) -> Bounds:
    """Return the bounds of the least possible cost of one topic whose keys have the same distribution at all times.

    Raises InvalidInput for a distribution that changes from step to step: use `lower_bound`, together with
    `slot_floor`.
    """
    spread = Spread.of(series)
    if not spread.is_steady:
        raise InvalidInput(f"the spread of {series.name} changes from step to step; use the lower bound only")
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
    excesses = np.array([np.maximum(load[:, None] * part - 1.0, 0.0).sum(axis=1) for part in parts]).T
    for excess in excesses:
        upper.step(excess[None, :], prices.reseal_seconds)
    floor_hours = float(floor.sum()) * series.step_seconds / 3600
    return Bounds(float(lower.best()[0]), float(upper.best()[0]), floor_hours)
