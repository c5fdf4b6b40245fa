"""The least any rule can pay, known afterwards: what a policy's cost is held against.

Where load can be divided at will, only the number of segments counts. `lower_bound` finds the best course of that number
exactly, so no layout of any kind is cheaper: it is a lower bound for every rule.
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
    """Least cost in segment-hours for `loads[topic, step]` (or one topic's `[step]`), in capacities.

    The number of segments n is free at every step, from `first` before the first one. A step costs its length times
    (n + price of excess · what of the load is above n); each segment added or removed costs its own price. Since that last
    cost is convex, the best predecessor of every n is a prefix or a suffix minimum: time × segments in all.
    """
    rows = np.atleast_2d(loads)
    top = max(least_segments, first, min(most_segments, int(np.ceil(rows.max(initial=0.0)))))
    counts = np.arange(least_segments, top + 1, dtype=np.float64)
    change = prices.change_seconds * counts
    held = np.full((len(rows), len(counts)), np.inf)
    held[:, max(first - least_segments, 0)] = 0.0
    standing = step_seconds * counts
    excess_price = step_seconds * prices.excess
    for load in rows.T:
        from_below = np.minimum.accumulate(held - change, axis=1) + change
        from_above = np.minimum.accumulate((held + change)[:, ::-1], axis=1)[:, ::-1] - change
        held = np.minimum(from_below, from_above)
        held += standing
        held += excess_price * np.maximum(load[:, None] - counts, 0.0)
    best: Floats = held.min(axis=1) / 3600.0
    return best
