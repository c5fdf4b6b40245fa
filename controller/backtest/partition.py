"""The best cuts of a row of weights into contiguous parts: as few as possible, or as equal as possible.

A row is given as its running sums, where `below[i]` is the sum before weight i; weights are not divided. Several
limits are processed at once. A greedy sweep from the left makes each part as long as its limit allows, which gives
the fewest parts. Bisection over the limit gives the smallest maximum for a number of parts.
"""

from __future__ import annotations

import numpy as np

from controller.backtest.arrays import Floats, Wholes

_HALVINGS = 60


def running_sums(weights: Floats) -> Floats:
    """Return the running sums of a row of weights: 0 first, the total last."""
    return np.concatenate([[0.0], np.cumsum(weights)])


def fewest_parts(below: Floats, limits: Floats, max_parts: int) -> Wholes:
    """Return, for each limit, the fewest parts of which none exceeds it; a weight above the limit is a part by
    itself. `max_parts` + 1 stands for every larger number.
    """
    begins = np.zeros(len(limits), dtype=np.int64)
    parts = np.zeros(len(limits), dtype=np.int64)
    weight_count = len(below) - 1
    for _ in range(max_parts + 1):
        is_unfinished = begins < weight_count
        if not is_unfinished.any():
            break
        ends = np.searchsorted(below, below[begins] + limits, side="right") - 1
        begins = np.where(is_unfinished, np.maximum(ends, begins + 1), begins)
        parts += is_unfinished
    return parts


def cuts(below: Floats, limit: float) -> list[int]:
    """Return the indexes of the first weights of all parts of the greedy sweep but the first."""
    weight_count = len(below) - 1
    starts: list[int] = []
    start = 0
    while start < weight_count:
        end = int(np.searchsorted(below, below[start] + limit, side="right")) - 1
        start = max(end, start + 1)
        starts.append(start)
    return starts[:-1]


def smallest_maxima(below: Floats, max_parts: int) -> tuple[Floats, Floats]:
    """Return two bounds of the smallest possible maximum, for each number of parts from 1 to `max_parts`: the
    maximum is never below the first, and a partition reaches the second.

    The two are as close as floating-point numbers allow, except at the limits at which a weight is a part by
    itself.
    """
    counts = np.arange(1, max_parts + 1)
    max_weight = float(np.diff(below).max())
    low = np.maximum(below[-1] / counts, max_weight) * (1.0 - 1e-12)
    high = np.full(max_parts, below[-1] * (1.0 + 1e-12))
    is_reachable = fewest_parts(below, np.maximum(low, max_weight) * (1.0 + 2e-12), max_parts) <= counts
    high = np.where(is_reachable, np.maximum(low, max_weight) * (1.0 + 2e-12), high)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        is_reachable = fewest_parts(below, middle, max_parts) <= counts
        high = np.where(is_reachable, middle, high)
        low = np.where(is_reachable, low, middle)
    return low, high
