"""The least cost that any rule can have, computed afterwards: the reference for a policy's cost.

If load can be divided arbitrarily, only the number of segments matters. `lower_bound` finds the cheapest sequence
of this number exactly, so no layout of any kind is cheaper: it is a lower bound for every rule, called J*.
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
    """Return the least cost in segment-hours for each topic of `loads[topic, step]` (or of one topic's `[step]`), in
    capacities. The result has an entry for each topic, also for a single topic.

    The number of segments n, from `least_segments` to `most_segments`, may change at every step; before the first
    step it is `first`. If `first` exceeds `most_segments`, n may be as large as `first`; if it is below
    `least_segments`, it counts as `least_segments`. `loads` must not contain NaN.
    A step costs its length times (n + `prices.excess` · load above n); each segment added or removed costs
    `prices.change_seconds`. The cost of the sealed width is not included, because it does not follow from the numbers
    of segments. Since the cost of changes is convex, the best predecessor of every n is a prefix or a suffix minimum,
    so the computation takes time × segments in total.
    """
    rows = np.atleast_2d(loads)
    highest_count = max(least_segments, first, min(most_segments, int(np.ceil(rows.max(initial=0.0)))))
    counts = np.arange(least_segments, highest_count + 1, dtype=np.float64)
    costs = _CostByCount(counts, len(rows), prices, step_seconds, first)
    for load in rows.T:
        costs.step(np.maximum(load[:, None] - counts, 0.0))
    return costs.best()


class _CostByCount:
    """The least cost, in segment-seconds, to have each number of segments at the current step, for several topics
    at once. `counts` are the numbers, ascending by 1. Before the first step only `initial_segments` is possible, or the
    lowest number if it is higher; `initial_segments` must not exceed the highest number.
    """

    def __init__(
        self, counts: Floats, topics: int, prices: Prices, step_seconds: int, initial_segments: int
    ) -> None:
        self.change_cost = prices.change_seconds * counts
        self.step_cost = step_seconds * counts
        self.excess_cost = step_seconds * prices.excess
        self.cost_by_count = np.full((topics, len(counts)), np.inf)
        self.cost_by_count[:, max(initial_segments - int(counts[0]), 0)] = 0.0

    def move(self, extra_cost: float = 0.0) -> None:
        """Allow any change of the number of segments, for `extra_cost` segment-seconds per change plus the cost per
        segment added or removed.
        """
        from_below = np.minimum.accumulate(self.cost_by_count - self.change_cost, axis=1) + self.change_cost
        above = (self.cost_by_count + self.change_cost)[:, ::-1]
        from_above = np.minimum.accumulate(above, axis=1)[:, ::-1] - self.change_cost
        cost_after_change = np.minimum(from_below, from_above)
        self.cost_by_count = (
            np.minimum(self.cost_by_count, cost_after_change + extra_cost)
            if extra_cost
            else cost_after_change
        )

    def step(self, excess: Floats, extra_cost: float = 0.0) -> None:
        """Allow a change as in `move`, then add the cost of one step: `excess[topic, count]` is the load above
        the capacity of that number of segments, in capacities. `extra_cost` as in `move`, in segment-seconds.
        """
        self.move(extra_cost)
        self.cost_by_count = self.cost_by_count + self.step_cost + self.excess_cost * excess

    def best(self) -> Floats:
        """Return the least cost of each topic so far in segment-hours, whatever its number of segments at the end."""
        least: Floats = self.cost_by_count.min(axis=1) / 3600.0
        return least
