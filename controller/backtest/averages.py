"""Exponentially moving averages of loads, for rules that go by those, as Pravega keeps them.

A segment's averages begin anew with it, at the first load above 0 that it has. All segments of a topic whose spread is
steady have the same loads but for a factor, so their averages differ by that factor and by when they began. One pass over
the topic's load gives them all: an average that began at report b is at report t

    A(t) + (load(b) - A(b)) · (1 - weight) ^ (observed reports after b up to t)

where A is one that began at 0 with the series. Where the load moves over the ring they are followed report by report.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from controller.backtest.arrays import Floats, Wholes, any_along, is_nan
from controller.domain.load import METRICS, LoadStats

DIGITS = 9
"""So many of an average's digits, in capacities, are compared: beyond them it is what the order of sums made it."""


class FollowedAverages:
    """`values[average, metric, segment]` of any topic, NaN for a segment that was not observed yet."""

    def __init__(self, minutes: Sequence[float], report_ms: int, metrics: Sequence[int]) -> None:
        self.metrics = metrics
        spans = np.asarray(minutes, dtype=np.float64) * 60_000
        self.weights = (1.0 - np.exp(-report_ms / spans))[:, None, None]
        self.values = np.empty((len(minutes), len(metrics), 0))

    def observe(self, rates: Sequence[Floats]) -> None:
        """Takes in `rates[metric][observation, segment]`."""
        for now in np.stack(rates, axis=1):
            fresh = is_nan(self.values) | (self.values == 0)
            self.values = np.where(fresh, now, self.values + self.weights * (now - self.values))

    def move(self, new: Sequence[int], old: Sequence[int], count: int) -> None:
        """Goes on with `count` segments, of which those at the places `new` were at `old`; the others begin."""
        values = np.full((*self.values.shape[:2], count), np.nan)
        values[:, :, new] = self.values[:, :, old]
        self.values = values

    def shown(self, ids: Sequence[int]) -> dict[int, tuple[LoadStats, ...]]:
        """For each segment that was observed an entry an average, in the order of their minutes."""
        observed = (~is_nan(self.values[0, 0])).tolist()
        table = self.values.transpose(2, 0, 1).tolist()
        return {
            segment_id: tuple(LoadStats(*all_rates(self.metrics, rates)) for rates in rows)
            for segment_id, rows, is_observed in zip(ids, table, observed, strict=True)
            if is_observed
        }


class SteadyAverages:
    """Of a topic whose spread is steady. Reports are named by their index; `measured[report, metric]`, NaN where nothing was observed."""

    def __init__(
        self,
        minutes: Sequence[float],
        report_ms: int,
        measured: Floats,
        capacities: Floats,
        metrics: Sequence[int],
    ) -> None:
        self.metrics = metrics
        self.capacities = capacities[list(metrics)]
        self.observed = ~any_along(is_nan(measured), 1)
        self.load = np.nan_to_num(measured[:, list(metrics)])
        self.count = np.cumsum(self.observed)
        self.kept = np.exp(-report_ms / (np.asarray(minutes, dtype=np.float64) * 60_000))
        self.running = np.stack([self._running(kept) for kept in self.kept.tolist()])
        self.begins = np.empty((len(metrics), 0), dtype=np.int64)
        self.next_load = [self._next_load(row) for row in range(len(metrics))]

    def _running(self, kept: float) -> Floats:
        """`[report, metric]`: the average that began at 0 with the series."""
        found = np.zeros_like(self.load)
        value = np.zeros(self.load.shape[1])
        for report in range(len(found)):
            if self.observed[report]:
                value = self.load[report] + kept * (value - self.load[report])
            found[report] = value
        return found

    def _next_load(self, row: int) -> Wholes:
        """For each report, and for one past the last, the first from there on with load."""
        end = len(self.load)
        places = np.where(self.load[:, row] > 0, np.arange(end), end)
        return np.append(np.minimum.accumulate(places[::-1])[::-1], end)

    def move(self, new: Sequence[int], old: Sequence[int], count: int, first_report: int) -> None:
        """Goes on with `count` segments, of which those at the places `new` were at `old`; the others begin."""
        end = len(self.load)
        begins = np.repeat([[after[min(first_report, end)]] for after in self.next_load], count, axis=1)
        begins[:, new] = self.begins[:, old]
        self.begins = begins

    def at(self, reports: Wholes, shares: Floats) -> Floats:
        """`[average, metric, report, segment]`, for segments that have these parts of the load."""
        end = len(self.load)
        begun = np.minimum(self.begins, end - 1)[:, None, :]
        lasted: Floats = (self.count[reports][None, :, None] - self.count[begun]).astype(np.float64)
        has_begun = (self.begins[:, None, :] <= reports[None, :, None]) & (self.begins[:, None, :] < end)
        rows = np.arange(len(self.metrics))[:, None, None]
        first = self.load[begun, rows]
        found = np.empty((len(self.kept), len(self.metrics), len(reports), shares.shape[-1]))
        for place, kept in enumerate(self.kept.tolist()):
            running = self.running[place]
            since = running[reports].T[:, :, None] + (first - running[begun, rows]) * kept ** np.maximum(
                lasted, 0.0
            )
            found[place] = np.where(has_begun, since, 0.0) * shares
        return found

    def uses(self, reports: Wholes, shares: Floats) -> Floats:
        """`[average, report, segment]` in capacities: the largest over the metrics."""
        found: Floats = (self.at(reports, shares) / self.capacities[None, :, None, None]).max(axis=1)
        return np.round(found, DIGITS)

    def shown(self, ids: Sequence[int], report: int, shares: Floats) -> dict[int, tuple[LoadStats, ...]]:
        """For each segment an entry an average, in the order of their minutes."""
        table = self.at(np.array([report]), shares)[:, :, 0, :].transpose(2, 0, 1).tolist()
        return {
            segment_id: tuple(LoadStats(*all_rates(self.metrics, rates)) for rates in rows)
            for segment_id, rows in zip(ids, table, strict=True)
        }


def all_rates(metrics: Sequence[int], values: Sequence[float]) -> list[float]:
    """The rates of all metrics, of which those given are not 0."""
    rates = [0.0] * len(METRICS)
    for metric, value in zip(metrics, values, strict=True):
        rates[metric] = value
    return rates
