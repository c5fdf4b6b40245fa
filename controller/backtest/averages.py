"""Exponentially moving averages of loads, for rules that go by those."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from controller.backtest.arrays import Floats, is_nan
from controller.domain.load import METRICS, LoadStats


class Averages:
    """Exponentially moving averages of each segment's rates, as Pravega keeps them: begun anew with a segment, at what is
    measured first.
    """

    def __init__(self, minutes: Sequence[float], report_ms: int, metrics: int) -> None:
        spans = np.asarray(minutes, dtype=np.float64) * 60_000
        self.weights = (1.0 - np.exp(-report_ms / spans))[:, None, None]
        self.values = np.empty((len(minutes), metrics, 0))

    def observe(self, rates: Sequence[Floats]) -> None:
        """Takes in `rates[metric][observation, segment]`."""
        for now in np.stack(rates, axis=1):
            fresh = is_nan(self.values) | (self.values == 0)
            self.values = np.where(fresh, now, self.values + self.weights * (now - self.values))

    def adopt(self, new: Sequence[int], old: Sequence[int], count: int) -> None:
        """Goes on with `count` segments, of which those at the places `new` were at `old`."""
        values = np.full((*self.values.shape[:2], count), np.nan)
        values[:, :, new] = self.values[:, :, old]
        self.values = values

    def shown(self, ids: Sequence[int], metrics: Sequence[int]) -> dict[int, tuple[LoadStats, ...]]:
        """For each segment that was measured, an entry an average in the order of their minutes."""
        found = {}
        for place, segment_id in enumerate(ids):
            table = self.values[:, :, place].tolist()
            if table[0][0] == table[0][0]:  # not NaN
                found[segment_id] = tuple(LoadStats(*all_rates(metrics, row)) for row in table)
        return found


def all_rates(metrics: Sequence[int], values: Sequence[float]) -> list[float]:
    """The rates of all metrics, of which those given are not 0."""
    rates = [0.0] * len(METRICS)
    for metric, value in zip(metrics, values, strict=True):
        rates[metric] = value
    return rates
