"""The load of a topic as it is measured at reports: means over a window, and the ticks that reports form.

A report of which a rate is unknown counts as not observed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from controller.backtest.arrays import Floats, Wholes, any_along, is_nan
from controller.backtest.load_series import LoadSeries
from controller.domain.load_record import METRICS, LoadThresholds


@dataclass(frozen=True, slots=True)
class Grain:
    """Units of time: steps of the series per report and per window, reports per tick."""

    steps_per_report: int
    steps_per_window: int
    reports_per_tick: int


class Reports:
    """The load of a series as reported. Immutable. Reports and ticks are identified by their index; the last report of a
    tick is at its end.

    `measured[report, metric]`: the mean over the window that ends with the report, NaN if nothing is known.
    `known[report]`: True if the report was observed, that is, if all four means are known; `known_reports` are the reports
    that were. `milliseconds`: time between two reports. `steps`: the step of the series at which each report ends.
    `metrics`: indexes of the metrics that are ever above 0; the first metric if there is none. `resumptions`: the reports
    that end a gap: observed reports after a report that was not. `per_tick` reports form a tick.
    """

    def __init__(self, series: LoadSeries, grain: Grain) -> None:
        self.start_ms, self.per_tick = series.start_ms, grain.reports_per_tick
        self.milliseconds = grain.steps_per_report * series.step_seconds * 1000
        self.steps = np.arange(grain.steps_per_report - 1, series.steps, grain.steps_per_report)
        self.measured = _window_means(series.rates, grain.steps_per_window)[self.steps]
        self.known = ~any_along(is_nan(self.measured), 1)
        self.metrics = [m for m in range(len(METRICS)) if np.any(self.measured[self.known, m] > 0)] or [0]
        self.known_reports = np.flatnonzero(self.known)
        self.resumptions = np.flatnonzero(self.known & ~np.concatenate([[True], self.known[:-1]]))

    def instant(self, report: int) -> int:
        """Return the end of a report, milliseconds since the Unix epoch."""
        return self.start_ms + (report + 1) * self.milliseconds

    def instants(self, reports: Wholes) -> Wholes:
        """Return the ends of reports, milliseconds since the Unix epoch."""
        return self.start_ms + (reports + 1) * self.milliseconds

    def last_of(self, tick: int) -> int:
        """Return the last report of a tick. For tick -1, before the first, return -1."""
        return (tick + 1) * self.per_tick - 1

    def next_resumption(self, report: int) -> int:
        """Return the first report after this one that ends a gap; one past the last report if there is none."""
        index = int(np.searchsorted(self.resumptions, report, side="right"))
        return int(self.resumptions[index]) if index < len(self.resumptions) else len(self.known)

    def at_ticks(self, ticks: int, thresholds: LoadThresholds) -> tuple[Floats, Floats]:
        """Return two arrays with the topic's load at the end of each of the first `ticks` ticks: the largest of rate ÷
        split threshold over the metrics, and the largest of rate ÷ merge threshold. NaN if a rate is not known. If a merge
        threshold is 0, the second is infinite, or NaN if its rate is 0 too. Split thresholds must be above 0.
        """
        last_reports = np.arange(ticks) * self.per_tick + self.per_tick - 1
        merge_rates = np.asarray(thresholds.merge.rates)
        with np.errstate(divide="ignore", invalid="ignore"):
            warmth = self.measured[last_reports] / merge_rates
        never_cold = np.inf if np.any(merge_rates <= 0) else 0.0
        load: Floats = (self.measured[last_reports] / np.asarray(thresholds.split.rates)).max(axis=1)
        return load, warmth.max(axis=1) + never_cold


def _window_means(rates: Floats, window: int) -> Floats:
    """Return `[step, metric]`: the mean of the metric's known values over the window of `window` steps that ends with the
    step; NaN without a known value. The first windows are shorter.
    """
    if window == 1:
        return rates
    is_known = ~is_nan(rates)
    sums = np.cumsum(np.concatenate([np.zeros((1, rates.shape[1])), np.where(is_known, rates, 0.0)]), axis=0)
    counts = np.cumsum(np.concatenate([np.zeros((1, rates.shape[1])), is_known]), axis=0)
    begins = np.maximum(np.arange(len(rates)) + 1 - window, 0)
    with np.errstate(invalid="ignore"):
        means: Floats = np.maximum(sums[1:] - sums[begins], 0.0) / (counts[1:] - counts[begins])
    return means
