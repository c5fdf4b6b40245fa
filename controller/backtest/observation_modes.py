"""The modes of observation, and the choice of a mode (`observe`).

- For rules that decide on load records, those that the aggregation would store: `RecordObservation` and its subclasses. `records` keeps the
  records. A new segment is measured at the report after its creation, and has no record until then. A rule that depends on the sides of
  the thresholds only need not be evaluated at every report: `CrossingObservation`, `SideObservation`.
- For rules that decide on moving averages, in place of load records (see `averages`): `FollowedAverageObservation`,
  `SteadyAverageObservation`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest

import numpy as np

from controller.backtest.arrays import Floats, Mask, Wholes, any_along, is_nan
from controller.backtest.averages import SteadyAverages, all_rates
from controller.backtest.load_series import LoadSeries
from controller.backtest.observation import Grain, Observation
from controller.backtest.records import RecordArrays
from controller.backtest.rule import Rule
from controller.backtest.spread import Spread
from controller.domain.layout import SegmentLayout
from controller.domain.load_memory import LoadMemory, Origin, origins_of
from controller.domain.load_record import LoadRecord, LoadStats
from controller.domain.policy import AutoScalePolicy


class RecordObservation(Observation):
    """Observation for a rule of load records that is evaluated at every tick. `domain.load_memory` keeps the remembered
    ticks.
    """

    def __init__(self, series: LoadSeries, rule: Rule, grain: Grain, spread: Spread) -> None:
        super().__init__(series, rule, grain, spread)
        policy = rule.policy
        self.arrays = RecordArrays(
            policy.thresholds, policy.load_change_threshold, policy.strict_pulsar, self.metrics
        )
        self.memory, self.origins = LoadMemory(rule.memory_ticks), dict[int, Origin]()

    def _observe(self, reports: Wholes) -> None:
        """Add these reports, each of which was observed, to the records; if the rule remembers ticks, add the reports that
        end a tick to the memory too.
        """
        rates = self._rates(reports)
        self.arrays.observe(rates, self.reports.instants(reports))
        if self.rule.memory_ticks:
            ends = (reports + 1) % self.reports.per_tick == 0
            self._remember(reports[ends], [rate[ends] for rate in rates])

    def _remember(self, reports: Wholes, rates: Sequence[Floats]) -> None:
        """Add the loads of these reports, each of which ends a tick, to the memory of each segment. `rates[metric][report,
        segment]`.
        """
        for row, report in enumerate(reports.tolist()):
            values = [rate[row].tolist() for rate in rates]
            measured = {
                segment_id: LoadStats(*all_rates(self.metrics, own))
                for segment_id, *own in zip(self.ids, *values, strict=True)
            }
            self.memory.remember(
                self.reports.instant(report),
                measured,
                self.rule.policy.load_memory_seconds,
                self.origins,
            )

    def _move(self, layout: SegmentLayout, new: Sequence[int], old: Sequence[int]) -> None:
        """Continue with the segments of the layout, of which those at the indexes `new` were at `old`; the others have
        no record and no memory until they are measured, and the memories of their parents are kept until then.
        """
        self.arrays.move(new, old, len(layout.active))
        if self.rule.memory_ticks:
            staying = set(new)
            self._pass_on(layout, [i for index, i in enumerate(self.ids) if index not in staying])

    def _pass_on(self, layout: SegmentLayout, created: Sequence[int]) -> None:
        """Keep the memories of the parents until their children are measured; remove memories that are no longer needed.
        `created`: ids of the active segments that the observation did not have before. `layout` must still contain their
        parents.
        """
        origins = self.origins | origins_of(created, layout.segments)
        waiting = {i for i in self.ids if i not in self.memory.known}
        self.origins = {i: origin for i, origin in origins.items() if i in waiting}
        parents = {parent for origin in self.origins.values() for parent in origin.parent_ids}
        self.memory.keep({*self.ids, *parents})

    def records(self, tick: int) -> dict[int, LoadRecord]:
        """Return, by segment id, the record of every segment that has a record. Each counts as observed at the last
        observation up to the end of the tick.
        """
        return self._records(np.flatnonzero(~is_nan(self.arrays.written[0])), self._heard_at(tick))

    def _records(self, indexes: Wholes, heard_at: int) -> dict[int, LoadRecord]:
        """Return, by segment id, the records of the segments at these indexes, each observed at `heard_at` (milliseconds
        since the Unix epoch). Each of the segments has a record.
        """
        records = self.arrays.records(indexes, self.metrics, heard_at)
        return dict(zip([self.ids[index] for index in indexes.tolist()], records, strict=True))

    def _heard_at(self, tick: int) -> int:
        """Return the instant of the last observation up to the end of the tick, in milliseconds since the Unix epoch; the start
        of the series if there is none.
        """
        return self._last_before(self.reports.last_of(tick) + 1)

    def _last_before(self, report: int) -> int:
        """Return the instant of the last observation before this report, in milliseconds since the Unix epoch; the start of
        the series if there is none.
        """
        index = int(np.searchsorted(self.reports.known_reports, report))
        last = int(self.reports.known_reports[index - 1]) if index else -1
        return self.reports.instant(last)

    def recent_loads(self) -> Mapping[int, tuple[LoadStats, ...]]:
        """Return, by segment id, the loads of the remembered ticks, the newest last; empty if the rule reads none. A segment
        without any is left out.
        """
        return self.memory.recent_loads(self.ids)

    def strikes(self) -> Mapping[int, int]:
        """Return, for each segment that has any, the number of consecutive splits that left nearly all of the load in
        it.
        """
        return self.memory.strikes(self.ids)


class RewriteObservation(RecordObservation):
    """Observation for a rule that is evaluated when a record is rewritten, because consumers, merges of two warm segments
    or the time of the last write matter.

    Records count as observed until the next gap, since the rule is not evaluated in between.
    """

    can_look_ahead = True

    def _heard_at(self, tick: int) -> int:
        """Return the instant (milliseconds since the Unix epoch) of the last observation before the next gap after the tick,
        or of the last of the series if there is no such gap. If the tick ends in a gap, return the instant of the last
        observation before this gap; the start of the series if there is none.
        """
        report = self.reports.last_of(tick)
        if not self.reports.known[report]:
            return super()._heard_at(tick)
        return self._last_before(self.reports.next_resumption(report))

    def _changes(self, reports: Wholes) -> Mask:
        """Return `[report]`: True if the report would rewrite a record, or a rate crosses a threshold."""
        rates = self._rates(reports)
        return any_along(self.arrays.rewrites(rates) | self.arrays.crossings(rates), 1)


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


class FollowedAverageObservation(Observation):
    """Observation for a rule of moving averages, of a series whose load moves over the ring: the averages are computed
    report by report. `values[average, metric, segment]` is NaN for a segment without an observation.
    """

    def __init__(self, series: LoadSeries, rule: Rule, grain: Grain, spread: Spread) -> None:
        super().__init__(series, rule, grain, spread)
        spans = np.asarray(rule.average_minutes, dtype=np.float64) * 60_000
        self.weights = (1.0 - np.exp(-self.reports.milliseconds / spans))[:, None, None]
        self.values = np.empty((len(rule.average_minutes), len(self.metrics), 0))

    def _observe(self, reports: Wholes) -> None:
        """Add these reports, each of which was observed. An average that is missing or 0 begins with the observed rate. No rate may be
        NaN, which would erase the average.
        """
        for rate in np.stack(self._rates(reports), axis=1):
            is_first = is_nan(self.values) | (self.values == 0)
            self.values = np.where(is_first, rate, self.values + self.weights * (rate - self.values))

    def _move(self, layout: SegmentLayout, new: Sequence[int], old: Sequence[int]) -> None:
        """Continue with the segments of the layout, of which those at the indexes `new` were at `old`; the averages of the
        others begin with their next observation.
        """
        values = np.full((*self.values.shape[:2], len(layout.active)), np.nan)
        values[:, :, new] = self.values[:, :, old]
        self.values = values

    def recent_loads(self) -> Mapping[int, tuple[LoadStats, ...]]:
        """Return, by segment id, the averages in the order of `rule.average_minutes`, as rates per second; metrics that are never above
        0 are 0. A segment without an observation is left out.
        """
        observed = (~is_nan(self.values[0, 0])).tolist()
        table = self.values.transpose(2, 0, 1).tolist()
        return {
            segment_id: tuple(LoadStats(*all_rates(self.metrics, rates)) for rates in rows)
            for segment_id, rows, is_observed in zip(self.ids, table, observed, strict=True)
            if is_observed
        }


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


def observe(
    series: LoadSeries, rule: Rule, grain: Grain, spread: Spread, *, every_tick: bool, has_consumers: bool
) -> Observation:
    """Return an observation of the series in the mode that suits the rule: for a rule of moving averages
    SteadyAverageObservation if the spread is steady, else FollowedAverageObservation, whatever the other arguments are;
    for any other rule RecordObservation if `every_tick`, RewriteObservation if `has_consumers` or if more than the sides
    of the thresholds matters, SideObservation if a tick is one report, else CrossingObservation.

    `every_tick`: True if the rule is evaluated at every tick, False if only when its answer can change. `has_consumers`:
    True if the topic has a subscription with registered consumers. There are no segments before the first `relayout`.
    """
    kind: type[Observation]
    if rule.average_minutes:
        kind = SteadyAverageObservation if spread.is_steady else FollowedAverageObservation
    elif every_tick:
        kind = RecordObservation
    elif has_consumers or not _rests_on_sides(rule.policy):
        kind = RewriteObservation
    else:
        kind = SideObservation if grain.reports_per_tick == 1 else CrossingObservation
    return kind(series, rule, grain, spread)


def _rests_on_sides(policy: AutoScalePolicy) -> bool:
    """Return True if decisions depend on the sides of the thresholds only: two cold segments are never hot together, and
    the time of the last write has no effect.
    """
    pairs = zip(policy.thresholds.merge.rates, policy.thresholds.split.rates, strict=True)
    return not policy.strict_pulsar and all(2 * merge <= split for merge, split in pairs)
