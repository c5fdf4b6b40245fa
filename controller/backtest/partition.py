"""The best cuts of a row of weights into contiguous parts: as few as possible, or as equal as possible.

A row is given as its running sums, where `below[i]` is the sum before slot i; slots are not divided. Several limits
are processed at once. A greedy sweep from the left makes each part as long as its limit allows, which gives the
fewest parts. Bisection over the limit gives the smallest maximum for a number of parts.
"""

from __future__ import annotations

import numpy as np

from controller.backtest.arrays import Floats, Wholes

_HALVINGS = 60


def running_sums(weights: Floats) -> Floats:
    """Return `below` for a row of weights: 0 first, the total last."""
    return np.concatenate([[0.0], np.cumsum(weights)])


def fewest_parts(below: Floats, limits: Floats, most: int) -> Wholes:
    """Return, for each limit, the fewest parts of which none exceeds it; a slot above the limit is a part by itself.
    `most` + 1 means more than `most`.
    """
    begins = np.zeros(len(limits), dtype=np.int64)
    parts = np.zeros(len(limits), dtype=np.int64)
    slots = len(below) - 1
    for _ in range(most + 1):
        left = begins < slots
        if not left.any():
            break
        reached = np.searchsorted(below, below[begins] + limits, side="right") - 1
        begins = np.where(left, np.maximum(reached, begins + 1), begins)
        parts += left
    return parts


def cuts(below: Floats, limit: float) -> list[int]:
    """Return the first slots of all parts of the greedy sweep but the first."""
    slots = len(below) - 1
    starts: list[int] = []
    begin = 0
    while begin < slots:
        reached = int(np.searchsorted(below, below[begin] + limit, side="right")) - 1
        begin = max(reached, begin + 1)
        starts.append(begin)
    return starts[:-1]


def smallest_maxima(below: Floats, most: int) -> tuple[Floats, Floats]:
    """Return, for 1 to `most` parts, bounds of the smallest possible maximum: it is never below the first, and a
    partition reaches the second.

    The two are as close as floating-point numbers allow, except at the limits at which a slot is a part by itself.
    """
    counts = np.arange(1, most + 1)
    heaviest = float(np.diff(below).max())
    low = np.maximum(below[-1] / counts, heaviest) * (1.0 - 1e-12)
    high = np.full(most, below[-1] * (1.0 + 1e-12))
    fits = fewest_parts(below, np.maximum(low, heaviest) * (1.0 + 2e-12), most) <= counts
    high = np.where(fits, np.maximum(low, heaviest) * (1.0 + 2e-12), high)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        fits = fewest_parts(below, middle, most) <= counts
        high = np.where(fits, middle, high)
        low = np.where(fits, low, middle)
    return low, high
