"""How a topic's load is spread over the ring: the part of it that falls on a range, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from controller.backtest.arrays import Floats, Wholes
from controller.backtest.load_series import LoadSeries
from controller.domain.hash_range import RING_SIZE, HashRange


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
        below = self.below if self.is_steady else self.below[steps]
        at = edges * ((below.shape[1] - 1) / RING_SIZE)
        whole = np.minimum(at.astype(np.int64), below.shape[1] - 2)
        part = at - whole
        reached = below[:, whole] * (1.0 - part) + below[:, whole + 1] * part
        on_each: Floats = np.maximum(reached[:, :, 1] - reached[:, :, 0], 0.0)
        return on_each
