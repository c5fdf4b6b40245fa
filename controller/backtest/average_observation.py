"""Observations for rules that decide on moving averages, in place of load records (see `averages`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest

import numpy as np

from controller.backtest.arrays import Mask, Wholes
from controller.backtest.averages import FollowedAverages, SteadyAverages
from controller.backtest.load_series import LoadSeries
from controller.backtest.measured_load import Grain
from controller.backtest.observation import Observation
from controller.backtest.rule import Rule
from controller.backtest.spread import Spread
from controller.domain.layout import SegmentLayout
from controller.domain.load_record import LoadStats


class FollowedAverageObservation(Observation):
    """Observation for a rule of moving averages, of a series whose load moves over the ring: the averages are computed
    report by report.
    """

    def __init__(self, series: LoadSeries, rule: Rule, grain: Grain, spread: Spread) -> None:
        super().__init__(series, rule, grain, spread)
        self.averages = FollowedAverages(rule.average_minutes, self.reports.milliseconds, self.metrics)

    def _observe(self, reports: Wholes) -> None:
        self.averages.observe(self._rates(reports))

    def _move(self, layout: SegmentLayout, new: Sequence[int], old: Sequence[int]) -> None:
        self.averages.move(new, old, len(layout.active))

    def recent_loads(self) -> Mapping[int, tuple[LoadStats, ...]]:
        """Return, by segment id, the averages in the order of `rule.average_minutes`. A segment without an observation is
        left out.
        """
        return self.averages.shown(self.ids)


class SteadyAverageObservation(Observation):
    """Observation for a rule of moving averages, of a series whose spread is steady: all averages are known in advance.
    The constructor computes the averages of the topic's load, from which the averages of segments follow.
    """

    can_look_ahead = True

    def __init__(self, series: LoadSeries, rule: Rule, grain: Grain, spread: Spread) -> None:
        super().__init__(series, rule, grain, spread)
        self.levels = np.array(list(zip_longest(*rule.average_levels, fillvalue=np.nan)), dtype=float).T
        self.averages = SteadyAverages(
            rule.average_minutes,
            self.reports.milliseconds,
            self.reports.measured,
            np.asarray(rule.policy.thresholds.split.rates),
            self.metrics,
        )
        self.made_at = np.empty(0, np.int64)

    def _move(self, layout: SegmentLayout, new: Sequence[int], old: Sequence[int]) -> None:
        """Continue with the segments of the layout, of which those at the indexes `new` were at `old`; the averages of the
        others begin at the next report with a load above 0.
        """
        made_at = np.full(len(layout.active), self.upto)
        made_at[new] = self.made_at[old]
        self.made_at = made_at
        self.shares = self.spread.shares(self.ranges, slice(None))[0]
        self.averages.move(new, old, len(layout.active), self.upto + 1)

    def recent_loads(self) -> Mapping[int, tuple[LoadStats, ...]]:
        """Return, by segment id, the averages in the order of `rule.average_minutes`; an average is 0 before the segment's
        first load. A segment is left out until a report has ended since its creation.
        """
        shown = self.averages.shown(self.ids, self.upto, self.shares)
        return {
            i: shown[i] for i, is_new in zip(self.ids, self.made_at == self.upto, strict=True) if not is_new
        }

    def next_news(self, tick: int, limit: int) -> int:
        """Return the first tick after `tick` and before `limit` at which an average crosses a level of the rule, a segment
        gets its first averages, or a gap in the measurements ends; otherwise `limit`.
        """
        self.sides = self._sides(np.array([self.reports.last_of(tick)]))
        return super().next_news(tick, limit)

    def _changes(self, reports: Wholes) -> Mask:
        """Return `[report]`: True if an average is on another side of a level of the rule than at the tick of `next_news`; True
        for all reports if no report has ended since a segment was created.
        """
        turned = np.logical_or.reduce(self._sides(reports) != self.sides, axis=(0, 1, 2, 4))
        result: Mask = turned | bool((self.made_at == self.upto).any())
        return result

    def _sides(self, reports: Wholes) -> Mask:
        """Return `[side, average, level, report, segment]`: side 0 is True if the average is above the level of the rule,
        side 1 if the average is below. Both are False where the average has fewer levels than another average.
        """
        uses = self.averages.uses(reports, self.shares)[:, None]
        levels = self.levels[:, :, None, None]
        return np.stack([uses > levels, uses < levels])
