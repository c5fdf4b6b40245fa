"""Exponentially moving averages of loads, for rules that decide on averages, as Pravega computes them.

A segment's averages begin with the segment, at its first observed load above 0. All segments of a topic whose spread
is steady have the same loads except for a factor, so their averages differ by this factor and by the report at which
they began. One pass over the topic's load yields all of them: an average that began at report b has at report t the
value

    A(t) + (load(b) - A(b)) · (1 - weight) ^ (observed reports after b up to t)

where A is the average that began at 0 with the series. If the load moves over the ring, the averages are computed
report by report (`observation_modes.FollowedAverageObservation`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from controller.backtest.arrays import Floats, Wholes, any_along, is_nan
from controller.domain.load_record import METRICS, LoadStats

DIGITS = 9
"""Number of digits of an average, in capacities, that are compared: further digits depend on the order of the additions.
"""


class SteadyAverages:
    """The averages of a topic whose spread is steady. Reports are identified by their index; `measured[report,
    metric]` is NaN without an observation. `minutes`: lengths of the averages. `report_ms`: milliseconds between
    two reports. `capacities[metric]`: capacity of a segment, for all four metrics as in `measured`. `metrics`: indexes of
    the metrics that are computed. A report that lacks any of the four rates counts as not observed. There are no
    segments before the first `move`.
    """

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
        self.load = np.where(self.observed[:, None], measured[:, list(metrics)], 0.0)
        self.count = np.cumsum(self.observed)
        self.decays = np.exp(-report_ms / (np.asarray(minutes, dtype=np.float64) * 60_000))
        self.running = np.stack([self._running(decay) for decay in self.decays.tolist()])
        self.begins = np.empty((len(metrics), 0), dtype=np.int64)
        self.next_load = [self._next_load(row) for row in range(len(metrics))]

    def _running(self, decay: float) -> Floats:
        """Return `[report, metric]`: the average of the topic's load that began at 0 with the series; a report without an
        observation leaves it unchanged. `decay` is the factor by which a report reduces the weight of the earlier ones.
        """
        averages = np.zeros_like(self.load)
        value = np.zeros(self.load.shape[1])
        for report in range(len(averages)):
            if self.observed[report]:
                value = self.load[report] + decay * (value - self.load[report])
            averages[report] = value
        return averages

    def _next_load(self, row: int) -> Wholes:
        """Return, for each report and for one past the last, the first observed report from there on in which the metric
        `metrics[row]` is above 0; one past the last if there is none.
        """
        end = len(self.load)
        indexes = np.where(self.load[:, row] > 0, np.arange(end), end)
        return np.append(np.minimum.accumulate(indexes[::-1])[::-1], end)

    def move(self, new: Sequence[int], old: Sequence[int], count: int, first_report: int) -> None:
        """Continue with `count` segments, of which those at the indexes `new` were at the indexes `old`; for each metric,
        the averages of the others begin at the first observed report from `first_report` on in which this metric is
        above 0. They never begin if there is no such report.
        """
        end = len(self.load)
        begins = np.repeat([[after[min(first_report, end)]] for after in self.next_load], count, axis=1)
        begins[:, new] = self.begins[:, old]
        self.begins = begins

    def at(self, reports: Wholes, shares: Floats) -> Floats:
        """Return the averages at these reports, as `[average, metric, report, segment]`, in the rates of the metrics
        (`uses` returns them in capacities). `shares[segment]` is each segment's share of the topic's load, for the
        segments of the last `move`. An average is 0 before it begins (see `move`); a report without an observation
        leaves it unchanged.
        """
        end = len(self.load)
        first_reports = np.minimum(self.begins, end - 1)[:, None, :]
        report_counts: Floats = (self.count[reports][None, :, None] - self.count[first_reports]).astype(
            np.float64
        )
        has_begun = (self.begins[:, None, :] <= reports[None, :, None]) & (self.begins[:, None, :] < end)
        rows = np.arange(len(self.metrics))[:, None, None]
        first = self.load[first_reports, rows]
        averages = np.empty((len(self.decays), len(self.metrics), len(reports), shares.shape[-1]))
        for index, decay in enumerate(self.decays.tolist()):
            running = self.running[index]
            since = running[reports].T[:, :, None] + (
                first - running[first_reports, rows]
            ) * decay ** np.maximum(report_counts, 0.0)
            averages[index] = np.where(has_begun, since, 0.0) * shares
        return averages

    def uses(self, reports: Wholes, shares: Floats) -> Floats:
        """Return each average in capacities, as `[average, report, segment]`, rounded to `DIGITS`: the largest of
        average ÷ capacity over the metrics.
        """
        largest: Floats = (self.at(reports, shares) / self.capacities[None, :, None, None]).max(axis=1)
        return np.round(largest, DIGITS)

    def shown(self, ids: Sequence[int], report: int, shares: Floats) -> dict[int, tuple[LoadStats, ...]]:
        """Return, by segment id, the value of each average at this report as rates per second, in the order of their minutes;
        0 for an average that has not begun and for metrics outside `metrics`. `ids` and `shares` are those of all segments
        of the last `move`.
        """
        table = self.at(np.array([report]), shares)[:, :, 0, :].transpose(2, 0, 1).tolist()
        return {
            segment_id: tuple(LoadStats(*all_rates(self.metrics, rates)) for rates in rows)
            for segment_id, rows in zip(ids, table, strict=True)
        }


def all_rates(metrics: Sequence[int], values: Sequence[float]) -> list[float]:
    """Return the rates of all `METRICS`, in their order: `values` for the metrics with the indexes `metrics`, 0 for the others."""
    rates = [0.0] * len(METRICS)
    for metric, value in zip(metrics, values, strict=True):
        rates[metric] = value
    return rates
