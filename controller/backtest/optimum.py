"""The least cost that any rule can have, computed afterwards: the reference for a policy's cost.

If load can be divided arbitrarily, only the number of segments matters. `lower_bound` finds the cheapest sequence of
this number exactly, so no layout of any kind is cheaper: it is a lower bound for every rule, called J*.
"""

from __future__ import annotations

import numpy as np

from controller.backtest.arrays import Floats
from controller.backtest.score import Prices


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
