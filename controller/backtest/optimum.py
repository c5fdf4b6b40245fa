"""The least cost that any rule can have, computed afterwards: the reference for a policy's cost.

If load can be divided arbitrarily, only the number of segments matters. `lower_bound` finds the cheapest sequence
of this number exactly, so no layout of any kind is cheaper: it is a lower bound for every rule, called J*.
"""

from __future__ import annotations

import numpy as np

from controller.backtest.arrays import Floats
from controller.backtest.score import Prices


def lower_bound(
    loads: Floats, prices: Prices, *, step_seconds: int, most_segments: int, first: int = 1
) -> Floats:
    """Return the least cost in segment-hours for each topic of `loads`, which is `[topic, step]`, or `[step]` for one
    topic, in capacities of a segment. The result has an entry for each topic, also for a single topic.

    The number of segments n, from 1 to `most_segments`, may change at every step; before the first step it is
    `first`. If `first` exceeds `most_segments`, n may be as large as `first`; a number below 1 counts as 1. `loads`
    must not contain NaN. A step costs its length times (n + `prices.excess` · load above n); each segment added or
    removed costs `prices.change_seconds`. The cost of the sealed width is not included, because it does not follow
    from the numbers of segments.
    """
    rows = np.atleast_2d(loads)
    highest_count = max(1, first, min(most_segments, int(np.ceil(rows.max(initial=0.0)))))
    counts = np.arange(1, highest_count + 1, dtype=np.float64)
    cost_by_count = np.full((len(rows), len(counts)), np.inf)
    cost_by_count[:, max(first - 1, 0)] = 0.0
    for load in rows.T:
        excess = np.maximum(load[:, None] - counts, 0.0)
        changed = _after_changes(cost_by_count, prices.change_seconds * counts)
        cost_by_count = changed + step_seconds * counts + step_seconds * prices.excess * excess
    least: Floats = cost_by_count.min(axis=1) / 3600.0
    return least


def _after_changes(cost_by_count: Floats, change_cost: Floats) -> Floats:
    """Return the least cost, in segment-seconds, to have each number of segments after a change or none. `cost_by_count[topic, count]`
    is the cost before it, `change_cost` the cost of adding that number of segments, ascending by the same amount.

    Since the cost of changes is convex, the best predecessor of every number is a prefix or a suffix minimum, so the
    computation takes time × segments in total.
    """
    from_below = np.minimum.accumulate(cost_by_count - change_cost, axis=1) + change_cost
    above = (cost_by_count + change_cost)[:, ::-1]
    from_above = np.minimum.accumulate(above, axis=1)[:, ::-1] - change_cost
    return np.minimum(from_below, from_above)
