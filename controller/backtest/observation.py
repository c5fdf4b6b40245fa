"""Observations: the load as it is measured at reports (`Reports`), and as a rule knows it. `Observation` is the common part of the modes in
which a simulation observes the load.

| mode | the rule reads | the rule is evaluated |
|---|---|---|
| `RecordObservation` | load records and remembered ticks | at every tick |
| `RewriteObservation` | load records | when a record is rewritten |
| `CrossingObservation` | load records | when a rate crosses a threshold |
| `SideObservation` | load records, of which only those that crossed are up to date | when a rate crosses a threshold |
| `SteadyAverageObservation` | moving averages | when an average turns to another side of a level |
| `FollowedAverageObservation` | moving averages | at every tick |

A report of which a rate is unknown counts as not observed. `observation_modes` has the modes and chooses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from controller.backtest.arrays import Floats, Mask, Wholes, any_along, is_nan
from controller.backtest.load_series import LoadSeries
from controller.backtest.rule import Rule
from controller.backtest.spread import Spread
from controller.domain.errors import InvariantViolated
from controller.domain.hash_range import HashRange
from controller.domain.layout import SegmentLayout
from controller.domain.load_record import METRICS, LoadRecord, LoadStats, LoadThresholds


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


_FIRST_LOOK_AHEAD = 64
_LONGEST_LOOK_AHEAD = 2048


class Observation:
    """The load of the active segments as a rule knows it, and the base of the modes. `advance` adds measurements;
    `relayout` replaces the segments after the layout has changed.

    Loads are observed at reports, of which one or more form a tick. Reports and ticks are identified by their index; the
    last report of a tick is at its end. There are no segments before the first `relayout`. `spread` is the distribution
    of the series over the ring.
    """

    can_look_ahead = False
    """True if `next_news` can compute the next change."""

    def __init__(self, series: LoadSeries, rule: Rule, grain: Grain, spread: Spread) -> None:
        self.spread, self.rule = spread, rule
        self.reports = Reports(series, grain)
        self.metrics = self.reports.metrics
        self.sketched: dict[int, tuple[float, ...]] = {}
        self.ids: tuple[int, ...] = ()
        self.ranges: tuple[HashRange, ...] = ()
        self.share: Floats | None = None
        self.upto = -1

    def advance(self, tick: int) -> None:
        """Add the observed reports from the last call of `advance` or `relayout` up to the end of this tick. Ticks must not
        decrease.
        """
        rows = slice(self.upto + 1, self.reports.last_of(tick) + 1)
        self.upto = rows.stop - 1
        reports = np.flatnonzero(self.reports.known[rows]) + rows.start
        if len(reports):
            self._observe(reports)

    def _observe(self, reports: Wholes) -> None:
        """Add these reports, each of which was observed. Does nothing here; the modes override the method."""

    def _rates(self, reports: Wholes) -> list[Floats]:
        """Return the rates per second of the active segments in these reports, as `[metric][report, segment]`. The metrics
        are those of `self.metrics`.
        """
        shares = (
            self.share
            if self.share is not None
            else self.spread.shares(self.ranges, self.reports.steps[reports])
        )
        return [self.reports.measured[reports, metric, None] * shares for metric in self.metrics]

    def relayout(self, layout: SegmentLayout, tick: int) -> None:
        """Continue with the active segments of another layout; segments that stay keep their measurements. Reports up to the
        end of `tick` that `advance` has not added are skipped; tick -1 is the start.
        """
        indexes = {segment_id: index for index, segment_id in enumerate(self.ids)}
        self.ids = tuple(segment.segment_id for segment in layout.active)
        self.ranges = tuple(segment.hash_range for segment in layout.active)
        self.upto = self.reports.last_of(tick)
        self.share = self.spread.shares(self.ranges, slice(None)) if self.spread.is_steady else None
        staying = [(new, indexes[i]) for new, i in enumerate(self.ids) if i in indexes]
        self._move(layout, [new for new, _ in staying], [old for _, old in staying])

    def _move(self, layout: SegmentLayout, new: Sequence[int], old: Sequence[int]) -> None:
        """Continue with the segments of the layout, of which those at the indexes `new` were at `old`; the others have no
        measurements yet. Does nothing here; the modes override the method.
        """

    def records(self, tick: int) -> dict[int, LoadRecord]:  # noqa: ARG002
        """Return, by segment id, the load record of every segment that has a record; empty in a mode without load records."""
        return {}

    def settle(self) -> bool:
        """Apply to the records the reports that `advance` deferred. Return True if the records may differ afterwards;
        False in a mode that defers no reports.
        """
        return False

    def recent_loads(self) -> Mapping[int, tuple[LoadStats, ...]]:
        """Return, by segment id, the loads of the last ticks, the newest last, or the moving averages; empty if the rule
        reads neither.
        """
        return {}

    def strikes(self) -> Mapping[int, int]:
        """Return, for each segment that has any, the number of consecutive splits that left nearly all of the load in
        it. Empty in a mode that remembers no ticks.
        """
        return {}

    def sketches(self, tick: int) -> Mapping[int, tuple[float, ...]]:
        """Return the key histogram of each active segment at the end of the tick, by segment id: the part (0..1) of the
        topic's load on each bin of the segment's range. Empty if keys are distributed evenly, because then no histogram is counted.
        """
        if self.spread.below is None:
            return {}
        step = int(self.reports.steps[self.reports.last_of(tick)])
        before = self.sketched if self.spread.is_steady else {}
        self.sketched = {
            segment_id: before.get(segment_id) or self.spread.sketch(hash_range, step)
            for segment_id, hash_range in zip(self.ids, self.ranges, strict=True)
        }
        return self.sketched

    def loads_of(self, ranges: Sequence[HashRange], tick: int) -> tuple[float, ...]:
        """Return the load on each range, in the given order, at the end of this tick, in capacities of a segment: the
        range's share of the largest of the topic's rates ÷ split threshold. A rate without an observation counts as 0.
        """
        report = self.reports.last_of(tick)
        total = float(
            np.nan_to_num(
                self.reports.measured[report] / np.asarray(self.rule.policy.thresholds.split.rates)
            ).max()
        )
        shares = self.spread.shares(ranges, self.reports.steps[report : report + 1])[0]
        return tuple((total * shares).tolist())

    def next_news(self, tick: int, limit: int) -> int:
        """Return the first tick after `tick` and before `limit` at which the rule's answer can change, or at which a
        gap in the measurements ends; otherwise `limit`. `advance(tick)` must have been called. Call the method only if
        `can_look_ahead`: another mode raises InvariantViolated if there is an observed report to check.
        """
        first, length = self.reports.last_of(tick) + 1, _FIRST_LOOK_AHEAD
        resumption = self.reports.next_resumption(first - 1)
        stop = min(limit * self.reports.per_tick, resumption, len(self.reports.known))
        while first < stop:
            end = min(first + length, stop)
            reports = np.flatnonzero(self._candidates(first, end)) + first
            for batch in (reports[:1], reports[1:]):  # the first report is nearly always the result
                if len(batch):
                    changes = self._changes(batch)
                    if changes.any():
                        return int(batch[changes.argmax()]) // self.reports.per_tick
            first, length = end, min(2 * length, _LONGEST_LOOK_AHEAD)
        return min(limit, resumption // self.reports.per_tick)

    def _candidates(self, first: int, end: int) -> Mask:
        """Return `[report]`, for the reports from `first` to before `end`: True if the report can change the rule's
        answer. Only observed reports can.
        """
        return self.reports.known[first:end]

    def _changes(self, reports: Wholes) -> Mask:  # noqa: ARG002
        """Return `[report]`: True if the rule's answer can change at the report. Raises InvariantViolated in a mode that
        cannot look ahead.
        """
        raise InvariantViolated(f"{self.rule.name} has to be evaluated at every tick; do not look ahead")
