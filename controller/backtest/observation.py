"""What a rule is shown of the load: the records that the aggregation would keep, and the last ticks of each segment.

Records are kept in arrays, by the rule of `domain/load.next_record`; a test holds the two against each other. A new
segment is measured at the report after it was made, and has no record until then. What is remembered: see `load_memory`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from controller.backtest.arrays import Floats, Mask, Wholes, any_along, is_nan
from controller.backtest.load_memory import LoadMemory
from controller.backtest.load_series import LoadSeries
from controller.backtest.rule import Rule
from controller.backtest.spread import Spread
from controller.domain.hash_range import HashRange
from controller.domain.layout import SegmentLayout
from controller.domain.load import FLOOR_FRACTION, METRICS, LoadRecord, LoadStats, LoadThresholds
from controller.domain.policy import AutoScalePolicy

_NEVER = -1
_FIRST_LOOK_AHEAD = 64
_LONGEST_LOOK_AHEAD = 1024


class RecordArrays:
    """The load records of some segments, as arrays: `written[metric, segment]` (NaN: no record), `modified_at`,
    `cold_since` (-1: not cold), instants in milliseconds since the Unix epoch.

    Only metrics that are ever above 0 are kept; the others are 0 at all times.
    """

    def __init__(
        self, thresholds: LoadThresholds, change_threshold: float, strict: bool, metrics: Sequence[int]
    ) -> None:
        self.strict = strict
        self.change = change_threshold
        self.split = [thresholds.split.rates[m] for m in metrics]
        self.merge = [thresholds.merge.rates[m] for m in metrics]
        idle = (thresholds.merge.rates[m] for m in range(len(METRICS)) if m not in metrics)
        self.can_be_cold = all(limit > 0 for limit in idle)
        self.adopt(np.empty((len(metrics), 0)), np.empty(0, np.int64), np.empty(0, np.int64))

    def adopt(self, written: Floats, modified_at: Wholes, cold_since: Wholes) -> None:
        """Goes on from these."""
        self.written, self.modified_at, self.cold_since = written, modified_at, cold_since

    def observe(self, rates: Sequence[Floats], instants: Wholes) -> None:
        """Takes in `rates[metric][observation, segment]`, the observations in order of time.

        Under `strict_pulsar` one observation at a time, since there what was written last also decides on `cold_since`.
        """
        if self.strict and len(instants) > 1:
            for row in range(len(instants)):
                self.observe([one[row : row + 1] for one in rates], instants[row : row + 1])
            return
        self._observe_cold(rates, instants)
        if len(instants) == 1:
            self._write(self.rewrites(rates)[0], rates, instants, np.zeros(rates[0].shape[1], np.int64))
            return
        row_of = np.arange(len(instants))[:, None]
        done = np.full(rates[0].shape[1], -1)
        while True:
            news = self.rewrites(rates) & (row_of > done)
            columns = any_along(news, 0)
            if not columns.any():
                return
            rows = news.argmax(axis=0)
            self._write(columns, rates, instants, rows)
            done[columns] = rows[columns]

    def _write(self, columns: Mask, rates: Sequence[Floats], instants: Wholes, rows: Wholes) -> None:
        chosen = np.flatnonzero(columns)
        for metric, one in enumerate(rates):
            self.written[metric, chosen] = one[rows[chosen], chosen]
        self.modified_at[chosen] = instants[rows[chosen]]

    def _observe_cold(self, rates: Sequence[Floats], instants: Wholes) -> None:
        cold = self._is_cold(rates)
        warm = ~cold
        since_start = ~any_along(warm, 0)
        goes_on = since_start & (self.cold_since != _NEVER) & self._is_cold(self.written[:, None, :])[0]
        run_starts = np.where(since_start, 0, len(instants) - warm[::-1].argmax(axis=0))
        began = instants[np.minimum(run_starts, len(instants) - 1)]
        self.cold_since = np.where(cold[-1], np.where(goes_on, self.cold_since, began), _NEVER)

    def _is_cold(self, rates: Sequence[Floats] | Floats) -> Mask:
        cold: Mask = np.full(rates[0].shape, self.can_be_cold)
        for one, limit in zip(rates, self.merge, strict=True):
            cold &= one < limit
        return cold

    def crossings(self, rates: Sequence[Floats]) -> Mask:
        """`[observation, segment]`: whether a rate is on another side of a threshold than the one written."""
        crossed: Mask = np.zeros(rates[0].shape, dtype=np.bool_)
        for one, was, above, below in zip(rates, self.written, self.split, self.merge, strict=True):
            crossed |= (one > above) != (was > above)
            crossed |= (one < below) != (was < below)
        return crossed

    def rewrites(self, rates: Sequence[Floats]) -> Mask:
        """`[observation, segment]`: whether the record would be written anew, if it is still as it is now."""
        news: Mask = is_nan(self.written[0]) | np.zeros(rates[0].shape, dtype=np.bool_)
        if not self.strict:
            news |= self.crossings(rates)
        with np.errstate(divide="ignore", invalid="ignore"):
            for one, was, merge in zip(rates, self.written, self.merge, strict=True):
                moved = np.abs(one - was)
                material = np.where(was == 0, one != 0, moved / was > self.change)
                news |= material if self.strict else material & (moved > FLOOR_FRACTION * merge)
        return news


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
                found[segment_id] = tuple(LoadStats(*_spread_over(metrics, row)) for row in table)
        return found


def _spread_over(metrics: Sequence[int], values: Sequence[float]) -> list[float]:
    rates = [0.0] * len(METRICS)
    for metric, value in zip(metrics, values, strict=True):
        rates[metric] = value
    return rates


@dataclass(frozen=True, slots=True)
class Grain:
    """Of what lengths time is made: steps of the series in a report and in the window it is about, reports in a tick."""

    steps_per_report: int
    steps_per_window: int
    reports_per_tick: int


class Observation:
    """The state of one run: `advance` takes in what was measured, `relayout` follows the layout.

    Loads are observed at reports, of which one or more make a tick. A report is named by its index, and so is a tick; the
    last report of a tick is at its end.
    """

    def __init__(self, series: LoadSeries, rule: Rule, grain: Grain, spread: Spread) -> None:
        policy = rule.policy
        self.spread, self.start_ms, self.rule = spread, series.start_ms, rule
        self.reports_per_tick = grain.reports_per_tick
        self.report_ms = grain.steps_per_report * series.step_seconds * 1000
        self.steps = np.arange(grain.steps_per_report - 1, series.steps, grain.steps_per_report)
        self.measured = _window_means(series.rates, grain.steps_per_window)[self.steps]
        self.known = ~any_along(is_nan(self.measured), 1)
        self.split_rates = np.asarray(policy.thresholds.split.rates)
        self.metrics = [m for m in range(len(METRICS)) if np.any(self.measured[self.known, m] > 0)] or [0]
        self.arrays = RecordArrays(
            policy.thresholds, policy.load_change_threshold, policy.strict_pulsar, self.metrics
        )
        self.by_crossings = _rests_on_sides(policy)
        self.known_reports = np.flatnonzero(self.known)
        self.resumptions = np.flatnonzero(self.known & ~np.concatenate([[True], self.known[:-1]]))
        self.looks_ahead = False
        self.averages = Averages(rule.average_minutes, self.report_ms, len(self.metrics))
        self.memory = LoadMemory(rule.memory_ticks, policy.load_memory_seconds)
        self.sketched: dict[int, tuple[float, ...]] = {}
        self.ids: tuple[int, ...] = ()
        self.ranges: tuple[HashRange, ...] = ()
        self.upto = -1

    def skip_between_looks(self, *, has_consumers: bool) -> None:
        """Readies `next_news`, and shows records as heard of until the next gap, since nobody asks in between.

        A rule of which the answer rests on the side of the thresholds only is asked at crossings; where consumers, merges
        of two warm segments or the time of the last write count too, at every rewritten record.
        """
        self.looks_ahead = True
        self.by_crossings = self.by_crossings and not has_consumers

    def _last_report(self, tick: int) -> int:
        return (tick + 1) * self.reports_per_tick - 1

    def advance(self, tick: int) -> None:
        """Takes in the reports up to the end of this tick."""
        rows = slice(self.upto + 1, self._last_report(tick) + 1)
        self.upto = rows.stop - 1
        reports = np.flatnonzero(self.known[rows]) + rows.start
        if not len(reports):
            return
        rates = self._rates(reports)
        self.arrays.observe(rates, self.start_ms + (reports + 1) * self.report_ms)
        if self.rule.average_minutes:
            self.averages.observe(rates)
        elif self.rule.memory_ticks:
            ends = (reports + 1) % self.reports_per_tick == 0
            self._remember(reports[ends], [one[ends] for one in rates])

    def _rates(self, reports: Wholes) -> list[Floats]:
        """`[metric][report, segment]`."""
        shares = (
            self.share if self.share is not None else self.spread.shares(self.ranges, self.steps[reports])
        )
        return [self.measured[reports, metric, None] * shares for metric in self.metrics]

    def _remember(self, reports: Wholes, rates: Sequence[Floats]) -> None:
        for row, report in enumerate(reports.tolist()):
            values = [one[row].tolist() for one in rates]
            measured = {
                segment_id: LoadStats(*_spread_over(self.metrics, own))
                for segment_id, *own in zip(self.ids, *values, strict=True)
            }
            self.memory.observe(self.start_ms + (report + 1) * self.report_ms, measured)

    def relayout(self, layout: SegmentLayout, tick: int) -> None:
        """Goes on with the active segments of another layout; what was measured up to `tick` has been taken in."""
        places = {segment_id: place for place, segment_id in enumerate(self.ids)}
        active = layout.active
        self.ids = tuple(segment.segment_id for segment in active)
        self.ranges = tuple(segment.hash_range for segment in active)
        self.upto = self._last_report(tick)
        self.share = self.spread.shares(self.ranges, slice(None)) if self.spread.is_steady else None
        staying = [(new, places[i]) for new, i in enumerate(self.ids) if i in places]
        new, old = ([pair[side] for pair in staying] for side in (0, 1))
        count, was = len(active), self.arrays
        written = np.full((len(self.metrics), count), np.nan)
        modified_at, cold_since = np.zeros(count, np.int64), np.full(count, _NEVER)
        written[:, new] = was.written[:, old]
        modified_at[new], cold_since[new] = was.modified_at[old], was.cold_since[old]
        was.adopt(written, modified_at, cold_since)
        if self.rule.average_minutes:
            self.averages.adopt(new, old, count)
        elif self.rule.memory_ticks:
            self.memory.relayout(layout)

    def records(self, tick: int) -> dict[int, LoadRecord]:
        """The record of every segment that has one."""
        heard = self._heard_at(tick)
        arrays = self.arrays
        values = [[0.0] * len(self.ids) for _ in METRICS]
        for row, metric in enumerate(self.metrics):
            values[metric] = arrays.written[row].tolist()
        rows = zip(
            self.ids,
            zip(*values, strict=True),
            arrays.modified_at.tolist(),
            arrays.cold_since.tolist(),
            strict=True,
        )
        mine = self.metrics[0]
        return {
            segment_id: LoadRecord(LoadStats(*rates), modified_at, None if cold == _NEVER else cold, heard)
            for segment_id, rates, modified_at, cold in rows
            if rates[mine] == rates[mine]  # not NaN
        }

    def _heard_at(self, tick: int) -> int:
        """The instant of the last observation; where looks are skipped and this report was observed, of the last one
        before the next gap.
        """
        now = self._last_report(tick)
        stop = self._next_resumption(now) if self.looks_ahead and self.known[now] else now + 1
        place = int(np.searchsorted(self.known_reports, stop))
        last = int(self.known_reports[place - 1]) if place else -1
        return self.start_ms + (last + 1) * self.report_ms

    def _next_resumption(self, report: int) -> int:
        """The first report after this one that ends a gap; one past the last where there is none."""
        place = int(np.searchsorted(self.resumptions, report, side="right"))
        return int(self.resumptions[place]) if place < len(self.resumptions) else len(self.known)

    def recent_loads(self) -> Mapping[int, tuple[LoadStats, ...]]:
        """The last ticks of each segment, the newest last, or its averages; empty where the rule reads none."""
        if self.rule.average_minutes:
            return self.averages.shown(self.ids, self.metrics)
        return self.memory.recent_loads()

    def at_ticks(self, ticks: int) -> tuple[Floats, Floats]:
        """The topic's load at the end of each tick: in capacities, and in merge thresholds."""
        last = np.arange(ticks) * self.reports_per_tick + self.reports_per_tick - 1
        merge_rates = np.asarray(self.rule.policy.thresholds.merge.rates)
        with np.errstate(divide="ignore", invalid="ignore"):
            warmth = self.measured[last] / merge_rates
        never_cold = np.inf if np.any(merge_rates <= 0) else 0.0
        load: Floats = (self.measured[last] / self.split_rates).max(axis=1)
        return load, warmth.max(axis=1) + never_cold

    def sketches(self, tick: int) -> Mapping[int, tuple[float, ...]]:
        """Where each segment's load lies; none where keys are spread evenly, since nobody counts that."""
        if self.spread.below is None:
            return {}
        if not self.spread.is_steady:
            self.sketched.clear()
        step = int(self.steps[self._last_report(tick)])
        before = self.sketched
        self.sketched = {
            segment_id: before.get(segment_id) or self.spread.sketch(hash_range, step)
            for segment_id, hash_range in zip(self.ids, self.ranges, strict=True)
        }
        return self.sketched

    def strikes(self) -> Mapping[int, int]:
        """How many splits in a row left nearly all of the load in a segment, where any did."""
        return self.memory.strikes()

    def next_news(self, tick: int, limit: int) -> int:
        """The first tick after `tick`, before `limit`, that brings the rule something new; else `limit`."""
        first, length = self._last_report(tick) + 1, _FIRST_LOOK_AHEAD
        resumption = self._next_resumption(first - 1)
        stop = min(limit * self.reports_per_tick, resumption, len(self.known))
        while first < stop:
            end = min(first + length, stop)
            reports = np.flatnonzero(self.known[first:end]) + first
            if len(reports):
                found = self._news(self._rates(reports))
                if found.any():
                    return int(reports[found.argmax()]) // self.reports_per_tick
            first, length = end, min(2 * length, _LONGEST_LOOK_AHEAD)
        return min(limit, resumption // self.reports_per_tick)

    def _news(self, rates: Sequence[Floats]) -> Mask:
        if not self.by_crossings:
            return any_along(self.arrays.rewrites(rates) | self.arrays.crossings(rates), 1)
        unknown = is_nan(self.arrays.written[0])
        return any_along(self.arrays.crossings(rates) | unknown, 1)

    def loads_of(self, ranges: Sequence[HashRange], tick: int) -> tuple[float, ...]:
        """The load on each range at this tick, in capacities."""
        report = self._last_report(tick)
        total = float(np.nan_to_num(self.measured[report] / self.split_rates).max())
        shares = self.spread.shares(ranges, self.steps[report : report + 1])[0]
        return tuple((total * shares).tolist())


def _rests_on_sides(policy: AutoScalePolicy) -> bool:
    """Whether nothing but the sides of the thresholds counts: two cold segments are never hot together, and the time of the
    last write means nothing.
    """
    pairs = zip(policy.thresholds.merge.rates, policy.thresholds.split.rates, strict=True)
    return not policy.strict_pulsar and all(2 * merge <= split for merge, split in pairs)


def _window_means(rates: Floats, window: int) -> Floats:
    """For each step, the mean over the window that ends with it, of what is known; NaN where nothing is."""
    if window == 1:
        return rates
    known = ~is_nan(rates)
    sums = np.cumsum(np.concatenate([np.zeros((1, rates.shape[1])), np.where(known, rates, 0.0)]), axis=0)
    counts = np.cumsum(np.concatenate([np.zeros((1, rates.shape[1])), known]), axis=0)
    begins = np.maximum(np.arange(len(rates)) + 1 - window, 0)
    with np.errstate(invalid="ignore"):
        means: Floats = np.maximum(sums[1:] - sums[begins], 0.0) / (counts[1:] - counts[begins])
    return means
