"""The least cost that any rule can have, computed afterwards: the reference for a policy's cost.

If load can be divided arbitrarily, only the number of segments matters. `lower_bound` finds the cheapest sequence
of this number exactly, so no layout of any kind is cheaper: it is a lower bound for every rule, called J*.

If the distribution of the keys is known, `bounds` gives tighter bounds. No partition removes the load of a single
hash above a segment's capacity (the hash floor). In every contiguous partition into n parts, one part has at least
the load M(n), the smallest maximum of all such partitions. Both raise the lower bound. The partitions with this
maximum give an upper bound: the cost of a controller that knows the future and changes from one of these partitions
to the next.
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
    """Return the least cost in segment-hours for each topic of `loads[topic, step]` (or of one topic's `[step]`),
    in capacities.

    The number of segments n, from `least_segments` to `most_segments`, may change at every step; before the
    first step it is `first`, which may exceed `most_segments`. A step costs its length times (n + `prices.excess` ·
    load above n); each segment added or removed costs `prices.change_seconds`. The cost of the sealed width is not
    included, because it does not follow from the numbers of segments. Since the cost of changes is convex, the best
    predecessor of every n is a prefix or a suffix minimum, so the computation takes time × segments in total.
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
    at once. `counts` are the numbers, ascending by 1.
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
        capacity, in capacities.
        """
        self.move(extra_cost)
        self.cost_by_count = self.cost_by_count + self.step_cost + self.excess_cost * excess

    def best(self) -> Floats:
        """Return the least cost of each topic in segment-hours."""
        least: Floats = self.cost_by_count.min(axis=1) / 3600.0
        return least


@dataclass(frozen=True, slots=True)
class Bounds:
    """Segment-hours between which the least possible cost lies, and the excess that no partition removes: hours of
    one capacity too much (`floor_hours`).
    """

    lower: float
    upper: float
    floor_hours: float


def hash_floor(series: LoadSeries, split_rates: Sequence[float]) -> Floats:
    """Return, for each step, the sum of the loads of single hashes above one capacity, in capacities. Without a
    known distribution, the load counts as evenly distributed over the ring.
    """
    load = series.load(split_rates)
    if series.shares is None:
        return np.maximum(load / RING_SIZE - 1.0, 0.0) * RING_SIZE
    hashes = RING_SIZE / series.shares.shape[1]
    descending_shares = np.sort(series.shares / hashes, axis=1)[:, ::-1]
    floor = np.zeros(len(load))
    for column in descending_shares.T:
        excess = np.maximum(load * column - 1.0, 0.0)
        if not excess.any():
            break
        floor += excess * hashes
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
    """Return the bounds, in segment-hours, of the least possible cost of one topic whose keys have the same
    distribution at all times, and the excess that no partition removes. The upper bound includes the cost of
    sealing the whole ring at each change.

    `split_rates` are the capacities of a segment in the order of `METRICS`; `first` is the number of segments
    before the first step. Raises InvalidInput for a distribution that changes from step to step: use `lower_bound`,
    together with `hash_floor`.
    """
    spread = Spread.of(series)
    if not spread.is_steady:
        raise InvalidInput(f"the spread of {series.name} changes from step to step; use the lower bound only")
    load, floor = series.load(split_rates), hash_floor(series, split_rates)
    counts = np.arange(least_segments, most_segments + 1)
    cumulative_shares = spread.below_hashes()
    least_max, best_max = smallest_maxima(cumulative_shares, most_segments)
    share_rows = [
        np.diff(cumulative_shares[[0, *cuts(cumulative_shares, limit), RING_SIZE]])
        for limit in best_max[least_segments - 1 :]
    ]
    lower_costs = _CostByCount(counts.astype(np.float64), 1, prices, series.step_seconds, first)
    upper_costs = _CostByCount(counts.astype(np.float64), 1, prices, series.step_seconds, first)
    least_shares = least_max[least_segments - 1 :]
    for topic_load, floor_load in zip(load.tolist(), floor.tolist(), strict=True):
        excess_by_count = floor_load + np.maximum(topic_load - floor_load - counts, 0.0)
        lower_costs.step(np.maximum(excess_by_count, topic_load * least_shares - 1.0)[None, :])
    excess_rows = np.array(
        [np.maximum(load[:, None] * shares - 1.0, 0.0).sum(axis=1) for shares in share_rows]
    ).T
    for excess in excess_rows:
        upper_costs.step(excess[None, :], prices.reseal_seconds)
    floor_hours = float(floor.sum()) * series.step_seconds / 3600
    return Bounds(float(lower_costs.best()[0]), float(upper_costs.best()[0]), floor_hours)
