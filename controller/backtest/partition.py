"""The best cuts of a row of weights into contiguous parts: as few as fit, or as even as can be.

A row is given as its running sums, `below[i]` being what lies before slot i; slots are not divided. Several limits are
worked on side by side: a greedy sweep from the left makes each part as long as its limit allows, which gives the fewest
parts, and bisection over the limit gives the smallest maximum for a number of parts.
"""

from __future__ import annotations

import numpy as np

from controller.backtest.arrays import Floats, Wholes

_HALVINGS = 60


def running_sums(weights: Floats) -> Floats:
    """`below` for a row of weights: 0 first, the total last."""
    return np.concatenate([[0.0], np.cumsum(weights)])


def fewest_parts(below: Floats, limits: Floats, most: int) -> Wholes:
    """For each limit the fewest parts of which none is above it; a slot above it stands alone. `most` + 1: more than that."""
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
    """The first slots of the parts of the greedy sweep but the first one."""
    slots = len(below) - 1
    found: list[int] = []
    begin = 0
    while begin < slots:
        reached = int(np.searchsorted(below, below[begin] + limit, side="right")) - 1
        begin = max(reached, begin + 1)
        found.append(begin)
    return found[:-1]


def smallest_maxima(below: Floats, most: int) -> tuple[Floats, Floats]:
    """For 1 to `most` parts, bounds of the smallest possible maximum: none is below the first, the second can be had.

    They are as near to each other as floats allow, but for the limits at which a slot stands alone.
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
