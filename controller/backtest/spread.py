"""Distribution of a topic's load over the ring: the part of the load that falls on a range, step by step."""

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
    """`below[row, edge]`: the part of the load (0..1) on the bins before the edge, in one row for all steps or one row per
    step. None: keys are distributed evenly.

    Inside a bin the load is distributed evenly.
    """

    below: Floats | None

    @classmethod
    def of(cls, series: LoadSeries) -> Spread:
        """Return the distribution of a series."""
        if series.shares is None:
            return cls(None)
        start = np.zeros((len(series.shares), 1))
        return cls(np.concatenate([start, np.cumsum(series.shares, axis=1)], axis=1))

    @property
    def is_steady(self) -> bool:
        """True if the distribution is the same at all steps."""
        return self.below is None or len(self.below) == 1

    def shares(self, ranges: Sequence[HashRange], steps: slice | Wholes) -> Floats:
        """Return `[step, range]`, the part (0..1) of the topic's load on each range at these steps (indexes of the series);
        one row for all steps if the distribution is steady.
        """
        edges = np.array([(r.start, r.end + 1) for r in ranges], dtype=np.float64)
        if self.below is None:
            even_shares: Floats = ((edges[:, 1] - edges[:, 0]) / RING_SIZE)[None, :]
            return even_shares
        cumulative = _cumulative_at(self.below if self.is_steady else self.below[steps], edges)
        shares: Floats = np.maximum(cumulative[:, :, 1] - cumulative[:, :, 0], 0.0)
        return shares

    def sketch(self, hash_range: HashRange, step: int) -> tuple[float, ...]:
        """Return the key histogram of a range at this step, in the bins of `key_sketch`: the part of the topic's
        load on each bin. Empty if keys are distributed evenly.
        """
        if self.below is None:
            return ()
        bins = bin_count(hash_range)
        edges = np.array([*bin_starts(hash_range, bins), hash_range.end + 1], dtype=np.float64)
        row = 0 if self.is_steady else step
        cumulative = _cumulative_at(self.below[row : row + 1], edges)[0]
        return tuple(np.maximum(np.diff(cumulative), 0.0).tolist())


def _cumulative_at(below: Floats, points: Floats) -> Floats:
    """Return `[row, point...]`: the part of the load below each point of the ring (0..65536), interpolated within
    bins.
    """
    position = points * ((below.shape[1] - 1) / RING_SIZE)
    bin_index = np.minimum(position.astype(np.int64), below.shape[1] - 2)
    fraction = position - bin_index
    cumulative: Floats = below[:, bin_index] * (1.0 - fraction) + below[:, bin_index + 1] * fraction
    return cumulative
