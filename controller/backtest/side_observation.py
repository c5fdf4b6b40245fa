"""Observations for rules that depend on the sides of the thresholds only, so that they need not be evaluated at every report."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from controller.backtest.arrays import Mask, Wholes, any_along, is_nan
from controller.backtest.load_series import LoadSeries
from controller.backtest.measured_load import Grain
from controller.backtest.record_observation import RewriteObservation
from controller.backtest.rule import Rule
from controller.backtest.spread import Spread
from controller.domain.layout import SegmentLayout
from controller.domain.load_record import LoadRecord

_WIDER = 1 + 1e-9


class CrossingObservation(RewriteObservation):
    """Observation for a rule that depends on the sides of the thresholds only. The rule is evaluated when a rate crosses a
    threshold.
    """

    def next_news(self, tick: int, limit: int) -> int:
        """Return the first tick after `tick` and before `limit` at which a rate crosses a threshold, a segment gets its
        first record, or a gap in the measurements ends; otherwise `limit`.
        """
        is_whole = self.share is not None and not is_nan(self.arrays.written[0]).any()
        self.room = self.arrays.room(self.share[0]) if is_whole and self.share is not None else None
        return super().next_news(tick, limit)

    def _candidates(self, first: int, end: int) -> Mask:
        """Return `[report]`, for the reports from `first` to before `end`: True if the report was observed. If `room` is known,
        the range of the topic's rates in which no segment crosses a threshold, only for rates near its bounds or beyond.
        """
        selected = super()._candidates(first, end)
        if self.room is None:
            return selected
        beyond = np.zeros(end - first, dtype=np.bool_)
        for metric, (lowest, highest) in zip(self.metrics, self.room, strict=True):
            rates = self.reports.measured[first:end, metric]
            beyond |= (rates <= lowest * _WIDER) | (rates >= highest / _WIDER)
        return selected & beyond

    def _changes(self, reports: Wholes) -> Mask:
        """Return `[report]`: True if a rate crosses a threshold; True for all reports if a segment has no record."""
        unknown = is_nan(self.arrays.written[0])
        return any_along(self.arrays.crossings(self._rates(reports)) | unknown, 1)


class SideObservation(CrossingObservation):
    """Like `CrossingObservation`, but `advance` adds the last report only: no threshold was crossed before the last report,
    so earlier reports cannot change the rule's answer. The records that crossed no threshold are updated when the rule
    takes an action (`settle`). A tick must have one report.
    """

    def __init__(self, series: LoadSeries, rule: Rule, grain: Grain, spread: Spread) -> None:
        super().__init__(series, rule, grain, spread)
        self.heard_at = -1
        self.shown: dict[int, LoadRecord] = {}
        self.settled = np.empty(0, np.int64)

    def _observe(self, reports: Wholes) -> None:
        """Write the last of these reports into the records in which it crosses a threshold and into the missing records.
        `settle` adds the reports that are deferred.
        """
        last = int(reports[-1])
        rates = [rate[0] for rate in self._rates(reports[-1:])]
        indexes = self.arrays.observe_sides(rates, self.reports.instant(last))
        self.settled[indexes] = last
        self.shown.update(self._records(indexes, self.heard_at))

    def _move(self, layout: SegmentLayout, new: Sequence[int], old: Sequence[int]) -> None:
        """Continue with the segments of the layout, of which those at the indexes `new` were at `old` and keep their records
        and deferred reports; the others have no record.
        """
        super()._move(layout, new, old)
        settled = np.full(len(layout.active), self.upto)
        settled[new] = self.settled[old]
        self.settled = settled
        self.shown = {i: self.shown[i] for i in self.ids if i in self.shown}

    def records(self, tick: int) -> dict[int, LoadRecord]:
        """Return, by segment id, the record of every segment that has a record. Rates and `modified_at` are up to date
        as of the first observation, the last crossing of a threshold, or the last `settle`, whichever was last; `cold_since`
        is always up to date. `observed_at` is the last observation before the next gap; in a gap, the last before this gap.
        """
        heard_at = self._heard_at(tick)
        if heard_at != self.heard_at:
            self.heard_at = heard_at
            self.shown = super().records(tick)
        return dict(self.shown)

    def settle(self) -> bool:
        """Apply to the records the reports that `advance` deferred. Always return True, even if no record changed."""
        first = int(self.settled.min()) + 1
        reports = np.flatnonzero(self.reports.known[first : self.upto + 1]) + first
        if len(reports):
            done = np.searchsorted(reports, self.settled, side="right") - 1
            changed = self.arrays.write_all(self._rates(reports), self.reports.instants(reports), done)
            self.shown.update(self._records(np.flatnonzero(changed), self.heard_at))
            self.settled[:] = self.upto
        return True
