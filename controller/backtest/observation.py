"""The rule's view of the load: the records that the aggregation would store, and the last ticks of each segment.

`records` keeps the records. A new segment is measured at the report after its creation, and has no record until then.
`domain.load_memory` keeps the remembered ticks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import zip_longest

import numpy as np

from controller.backtest.arrays import Floats, Mask, Wholes, any_along, is_nan
from controller.backtest.averages import FollowedAverages, SteadyAverages, all_rates
from controller.backtest.load_series import LoadSeries
from controller.backtest.records import RecordArrays
from controller.backtest.reports import Grain, Reports
from controller.backtest.rule import Rule
from controller.backtest.spread import Spread
from controller.domain.errors import InvariantViolated
from controller.domain.hash_range import HashRange
from controller.domain.layout import SegmentLayout
from controller.domain.load import LoadRecord, LoadStats
from controller.domain.load_memory import LoadMemory, Origin, origins_of
from controller.domain.policy import AutoScalePolicy

_FIRST_LOOK_AHEAD = 64
_LONGEST_LOOK_AHEAD = 2048
_WIDER = 1 + 1e-9


class Observation:
    """The state of one run: `advance` adds measurements, `relayout` follows the layout.

    Loads are observed at reports, of which one or more form a tick. Reports and ticks are identified by their index;
    the last report of a tick is at its end.
    """

    def __init__(self, series: LoadSeries, rule: Rule, grain: Grain, spread: Spread) -> None:
        policy = rule.policy
        self.spread, self.rule = spread, rule
        self.reports = Reports(series, grain)
        self.metrics = self.reports.metrics
        self.arrays = RecordArrays(
            policy.thresholds, policy.load_change_threshold, policy.strict_pulsar, self.metrics
        )
        self.by_crossings = _rests_on_sides(policy)
        self.looks_ahead = self.is_lazy = False
        self.heard_at = -1
        self.shown: dict[int, LoadRecord] = {}
        self.settled = self.made_at = np.empty(0, np.int64)
        minutes = rule.average_minutes
        self.levels = np.array(list(zip_longest(*rule.average_levels, fillvalue=np.nan)), dtype=float).T
        self.averages: SteadyAverages | None = None
        self.followed: FollowedAverages | None = None
        if minutes and spread.is_steady:
            self.averages = SteadyAverages(
                minutes,
                self.reports.milliseconds,
                self.reports.measured,
                np.asarray(policy.thresholds.split.rates),
                self.metrics,
            )
        elif minutes:
            self.followed = FollowedAverages(minutes, self.reports.milliseconds, self.metrics)
        self.memory, self.origins = LoadMemory(rule.memory_ticks), dict[int, Origin]()
        self.sketched: dict[int, tuple[float, ...]] = {}
        self.ids: tuple[int, ...] = ()
        self.ranges: tuple[HashRange, ...] = ()
        self.upto = -1

    @property
    def can_look_ahead(self) -> bool:
        """True if `next_news` can compute the next change."""
        return self.followed is None

    def skip_between_looks(self, *, has_consumers: bool) -> None:
        """Prepare for `next_news`. Records count as observed until the next gap, since the rule is not evaluated in
        between.

        A rule that depends only on the sides of the thresholds is evaluated at crossings. If consumers, merges of two
        warm segments or the time of the last write also matter, the rule is evaluated at every rewritten record.
        """
        self.looks_ahead = True
        self.by_crossings = self.by_crossings and not has_consumers
        self.is_lazy = self.by_crossings and self.reports.per_tick == 1

    def advance(self, tick: int) -> None:
        """Add the reports up to the end of this tick."""
        rows = slice(self.upto + 1, self.reports.last_of(tick) + 1)
        self.upto = rows.stop - 1
        reports = np.flatnonzero(self.reports.known[rows]) + rows.start
        if not len(reports):
            return
        if self.averages is not None:
            return
        if self.is_lazy:
            self._advance_by_sides(reports[-1:])
            return
        rates = self._rates(reports)
        if self.followed is not None:
            self.followed.observe(rates)
            return
        self.arrays.observe(rates, self.reports.instants(reports))
        if self.rule.memory_ticks:
            ends = (reports + 1) % self.reports.per_tick == 0
            self._remember(reports[ends], [rate[ends] for rate in rates])

    def _advance_by_sides(self, report: Wholes) -> None:
        """Add the last report only: no threshold was crossed since the last evaluation, so earlier reports cannot change
        the rule's answer. The rule depends on the sides of the thresholds only, so the other records are updated when
        it takes an action (`settle`).
        """
        last = int(report[0])
        rates = [rate[0] for rate in self._rates(report)]
        indexes = self.arrays.observe_sides(rates, self.reports.instant(last))
        self.settled[indexes] = last
        self._show(indexes)

    def _rates(self, reports: Wholes) -> list[Floats]:
        """Return `[metric][report, segment]`."""
        shares = (
            self.share
            if self.share is not None
            else self.spread.shares(self.ranges, self.reports.steps[reports])
        )
        return [self.reports.measured[reports, metric, None] * shares for metric in self.metrics]

    def _remember(self, reports: Wholes, rates: Sequence[Floats]) -> None:
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

    def relayout(self, layout: SegmentLayout, tick: int) -> None:
        """Continue with the active segments of another layout; all measurements up to `tick` have been added."""
        indexes = {segment_id: index for index, segment_id in enumerate(self.ids)}
        active = layout.active
        self.ids = tuple(segment.segment_id for segment in active)
        self.ranges = tuple(segment.hash_range for segment in active)
        self.upto = self.reports.last_of(tick)
        self.share = self.spread.shares(self.ranges, slice(None)) if self.spread.is_steady else None
        staying = [(new, indexes[i]) for new, i in enumerate(self.ids) if i in indexes]
        new, old = ([pair[side] for pair in staying] for side in (0, 1))
        count = len(active)
        self.arrays.move(new, old, count)
        settled = np.full(count, self.upto)
        settled[new] = self.settled[old]
        self.settled = settled
        made_at = np.full(count, self.upto)
        made_at[new] = self.made_at[old]
        self.made_at = made_at
        self.shown = {i: self.shown[i] for i in self.ids if i in self.shown}
        if self.averages is not None:
            self.averages.move(new, old, count, self.upto + 1)
        elif self.followed is not None:
            self.followed.move(new, old, count)
        elif self.rule.memory_ticks:
            self._pass_on(layout, [i for i in self.ids if i not in indexes])

    def _pass_on(self, layout: SegmentLayout, created: Collection[int]) -> None:
        """Keep the memories of the parents until their children are measured; remove memories that are no longer needed."""
        origins = self.origins | origins_of(created, layout.segments)
        waiting = {i for i in self.ids if i not in self.memory.known}
        self.origins = {i: origin for i, origin in origins.items() if i in waiting}
        parents = {parent for origin in self.origins.values() for parent in origin.parent_ids}
        self.memory.keep({*self.ids, *parents})

    def records(self, tick: int) -> dict[int, LoadRecord]:
        """Return the record of every segment that has one."""
        observed_at = self._heard_at(tick)
        if observed_at != self.heard_at or not self.is_lazy:
            self.heard_at = observed_at
            self._show(np.flatnonzero(~is_nan(self.arrays.written[0])))
        return dict(self.shown)

    def _show(self, indexes: Wholes) -> None:
        records = self.arrays.records(indexes, self.metrics, self.heard_at)
        self.shown.update(zip([self.ids[index] for index in indexes.tolist()], records, strict=True))

    def settle(self) -> None:
        """Apply to the records the reports that `advance` deferred."""
        first = int(self.settled.min()) + 1
        reports = np.flatnonzero(self.reports.known[first : self.upto + 1]) + first
        if not len(reports):
            return
        done = np.searchsorted(reports, self.settled, side="right") - 1
        instants = self.reports.instants(reports)
        self._show(np.flatnonzero(self.arrays.write_all(self._rates(reports), instants, done)))
        self.settled[:] = self.upto

    def _heard_at(self, tick: int) -> int:
        """Return the instant of the last observation. If evaluations are skipped and this report was observed, return
        the last observation before the next gap.
        """
        report = self.reports.last_of(tick)
        stop = (
            self.reports.next_resumption(report)
            if self.looks_ahead and self.reports.known[report]
            else report + 1
        )
        index = int(np.searchsorted(self.reports.known_reports, stop))
        last = int(self.reports.known_reports[index - 1]) if index else -1
        return self.reports.instant(last)

    def recent_loads(self) -> Mapping[int, tuple[LoadStats, ...]]:
        """Return the last ticks of each segment, the newest last, or its averages; empty if the rule reads neither."""
        if self.averages is not None and self.share is not None:
            first = self.averages.shown(self.ids, self.upto, self.share[0])
            return {
                i: first[i]
                for i, is_new in zip(self.ids, self.made_at == self.upto, strict=True)
                if not is_new
            }
        if self.followed is not None:
            return self.followed.shown(self.ids)
        return self.memory.recent_loads(self.ids)

    def sketches(self, tick: int) -> Mapping[int, tuple[float, ...]]:
        """Return the key histogram of each segment; empty if keys are distributed evenly, because then no histogram is
        counted.
        """
        if self.spread.below is None:
            return {}
        if not self.spread.is_steady:
            self.sketched.clear()
        step = int(self.reports.steps[self.reports.last_of(tick)])
        before = self.sketched
        self.sketched = {
            segment_id: before.get(segment_id) or self.spread.sketch(hash_range, step)
            for segment_id, hash_range in zip(self.ids, self.ranges, strict=True)
        }
        return self.sketched

    def strikes(self) -> Mapping[int, int]:
        """Return, for each segment that has any, the number of consecutive splits that left nearly all of the load in
        it.
        """
        return self.memory.strikes(self.ids)

    def next_news(self, tick: int, limit: int) -> int:
        """Return the first tick after `tick` and before `limit` at which the rule's answer can change; otherwise
        `limit`.
        """
        first, length = self.reports.last_of(tick) + 1, _FIRST_LOOK_AHEAD
        resumption = self.reports.next_resumption(first - 1)
        stop = min(limit * self.reports.per_tick, resumption, len(self.reports.known))
        room = None
        sides = self._sides(np.array([first - 1])) if self.averages is not None else None
        if (
            self.by_crossings
            and sides is None
            and self.share is not None
            and not is_nan(self.arrays.written[0]).any()
        ):
            room = self.arrays.room(self.share[0])
        while first < stop:
            end = min(first + length, stop)
            reports = self._candidates(first, end, room)
            for batch in (reports[:1], reports[1:]):  # the first report is nearly always the result
                if len(batch):
                    changes = self._news(self._rates(batch)) if sides is None else self._turns(batch, sides)
                    if changes.any():
                        return int(batch[changes.argmax()]) // self.reports.per_tick
            first, length = end, min(2 * length, _LONGEST_LOOK_AHEAD)
        return min(limit, resumption // self.reports.per_tick)

    def _candidates(self, first: int, end: int, room: Sequence[tuple[float, float]] | None) -> Wholes:
        """Return observed reports. If `room`, the range of the topic's rates, is given, return only those near its
        bounds or beyond.
        """
        selected = self.reports.known[first:end]
        if room is not None:
            beyond = np.zeros(end - first, dtype=np.bool_)
            for metric, (lowest, highest) in zip(self.metrics, room, strict=True):
                rates = self.reports.measured[first:end, metric]
                beyond |= (rates <= lowest * _WIDER) | (rates >= highest / _WIDER)
            selected = selected & beyond
        return np.flatnonzero(selected) + first

    def _sides(self, reports: Wholes) -> Mask:
        """Return `[average, level, report, segment]` twice: whether an average is above a level of the rule, and below."""
        if self.averages is None or self.share is None:
            raise InvariantViolated(
                "a topic whose load moves over the ring has no averages in advance; evaluate the rule at every tick"
            )
        uses = self.averages.uses(reports, self.share[0])[:, None]
        levels = self.levels[:, :, None, None]
        return np.stack([uses > levels, uses < levels])

    def _turns(self, reports: Wholes, sides: Mask) -> Mask:
        """Return `[report]`: True if an average has changed its side of a level, or a segment has no average yet."""
        turned = np.logical_or.reduce(self._sides(reports) != sides, axis=(0, 1, 2, 4))
        result: Mask = turned | bool((self.made_at == self.upto).any())
        return result

    def _news(self, rates: Sequence[Floats]) -> Mask:
        if not self.by_crossings:
            return any_along(self.arrays.rewrites(rates) | self.arrays.crossings(rates), 1)
        unknown = is_nan(self.arrays.written[0])
        return any_along(self.arrays.crossings(rates) | unknown, 1)

    def loads_of(self, ranges: Sequence[HashRange], tick: int) -> tuple[float, ...]:
        """Return the load on each range at this tick, in capacities."""
        report = self.reports.last_of(tick)
        total = float(
            np.nan_to_num(
                self.reports.measured[report] / np.asarray(self.rule.policy.thresholds.split.rates)
            ).max()
        )
        shares = self.spread.shares(ranges, self.reports.steps[report : report + 1])[0]
        return tuple((total * shares).tolist())


def _rests_on_sides(policy: AutoScalePolicy) -> bool:
    """Return True if decisions depend on the sides of the thresholds only: two cold segments are never hot together, and
    the time of the last write has no effect.
    """
    pairs = zip(policy.thresholds.merge.rates, policy.thresholds.split.rates, strict=True)
    return not policy.strict_pulsar and all(2 * merge <= split for merge, split in pairs)
