"""How a topic's load is spread over the ring: the part of it that falls on a range, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from controller.backtest.arrays import Floats, Wholes
from controller.backtest.load_series import LoadSeries
from controller.domain.hash_range import RING_SIZE, HashRange
from controller.domain.key_sketch import bin_count, bin_starts


@dataclass(frozen=True, eq=False)
class Spread:
    """`below[row, edge]`: the part of the load on the bins before that edge. None: keys are spread evenly.

    Inside a bin the load is taken as even.
    """

    below: Floats | None

    @classmethod
    def of(cls, series: LoadSeries) -> Spread:
        """The spread of a series."""
        if series.shares is None:
            return cls(None)
        start = np.zeros((len(series.shares), 1))
        return cls(np.concatenate([start, np.cumsum(series.shares, axis=1)], axis=1))

    @property
    def is_steady(self) -> bool:
        """Whether it is the same at all steps."""
        return self.below is None or len(self.below) == 1

    def shares(self, ranges: Sequence[HashRange], steps: slice | Wholes) -> Floats:
        """`[step, range]`, or one row for all steps where the spread is steady."""
        edges = np.array([(r.start, r.end + 1) for r in ranges], dtype=np.float64)
        if self.below is None:
            even: Floats = ((edges[:, 1] - edges[:, 0]) / RING_SIZE)[None, :]
            return even
        reached = _reached(self.below if self.is_steady else self.below[steps], edges)
        on_each: Floats = np.maximum(reached[:, :, 1] - reached[:, :, 0], 0.0)
        return on_each

    def below_hashes(self) -> Floats:
        """The part of the load below each hash and below the end of the ring, of a steady spread."""
        points = np.arange(RING_SIZE + 1, dtype=np.float64)
        if self.below is None:
            return points / RING_SIZE
        found: Floats = np.maximum.accumulate(_reached(self.below[:1], points)[0])
        return found

    def sketch(self, hash_range: HashRange, step: int) -> tuple[float, ...]:
        """Where in a range its load lies, in the bins of `key_sketch`: the part of the topic's load on each."""
        if self.below is None:
            return ()
        bins = bin_count(hash_range)
        edges = np.array([*bin_starts(hash_range, bins), hash_range.end + 1], dtype=np.float64)
        row = 0 if self.is_steady else step
        reached = _reached(self.below[row : row + 1], edges)[0]
        return tuple(np.maximum(np.diff(reached), 0.0).tolist())


def _reached(below: Floats, points: Floats) -> Floats:
    """`[row, point...]`: the part of the load below each point of the ring."""
    at = points * ((below.shape[1] - 1) / RING_SIZE)
    whole = np.minimum(at.astype(np.int64), below.shape[1] - 2)
    part = at - whole
    found: Floats = below[:, whole] * (1.0 - part) + below[:, whole + 1] * part
    return found
