"""Load records kept in arrays, by the rule of `domain/load.next_record`; a test holds the two against each other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from controller.backtest.arrays import Floats, Mask, Wholes, any_along, is_nan
from controller.domain.load import FLOOR_FRACTION, METRICS, LoadRecord, LoadStats, LoadThresholds

NOT_COLD = -1


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

    def move(self, new: Sequence[int], old: Sequence[int], count: int) -> None:
        """Goes on with `count` segments, of which those at the places `new` were at `old`; the others have no record."""
        written = np.full((len(self.written), count), np.nan)
        modified_at, cold_since = np.zeros(count, np.int64), np.full(count, NOT_COLD)
        written[:, new] = self.written[:, old]
        modified_at[new], cold_since[new] = self.modified_at[old], self.cold_since[old]
        self.adopt(written, modified_at, cold_since)

    def records(self, places: Wholes, metrics: Sequence[int], heard_at: int) -> list[LoadRecord]:
        """The records of the segments at these places."""
        columns = [[0.0] * len(places)] * len(METRICS)
        for metric, written in zip(metrics, self.written, strict=True):
            columns[metric] = written[places].tolist()
        return [
            LoadRecord(LoadStats(a, b, c, d), modified_at, None if since == NOT_COLD else since, heard_at)
            for a, b, c, d, modified_at, since in zip(
                *columns, self.modified_at[places].tolist(), self.cold_since[places].tolist(), strict=True
            )
        ]

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
        self.write_all(rates, instants, np.full(rates[0].shape[1], -1))

    def write_all(self, rates: Sequence[Floats], instants: Wholes, done: Wholes) -> Mask:
        """Rewrites whatever record has to be, over the observations after each segment's last one `done`; which were."""
        row_of = np.arange(len(instants))[:, None]
        done = done.copy()
        written = np.zeros(len(done), dtype=np.bool_)
        while True:
            news = self.rewrites(rates) & (row_of > done)
            columns = any_along(news, 0)
            if not columns.any():
                return written
            rows = news.argmax(axis=0)
            self._write(columns, rates, instants, rows)
            done[columns] = rows[columns]
            written |= columns

    def observe_sides(self, rates: Sequence[Floats], instant: int) -> Wholes:
        """Takes in one observation `rates[metric][segment]` as far as it crosses a threshold, or is the first of a segment;
        the places at which it does. What else should have been written meanwhile, `write_all` writes later.
        """
        crossed = (self.crossings([one[None, :] for one in rates]) | is_nan(self.written[0]))[0]
        places = np.flatnonzero(crossed)
        for metric, one in enumerate(rates):
            self.written[metric, places] = one[places]
        self.modified_at[places] = instant
        cold = self._is_cold([one[places] for one in rates])
        lasting = cold & (self.cold_since[places] != NOT_COLD)
        self.cold_since[places] = np.where(
            lasting, self.cold_since[places], np.where(cold, instant, NOT_COLD)
        )
        return places

    def room(self, shares: Floats) -> list[tuple[float, float]]:
        """For each metric the least and the largest rate of the topic at which no segment, of which this is the part,
        crosses a threshold; exact but for rounding.
        """
        bounds = []
        with np.errstate(divide="ignore", invalid="ignore"):
            for was, above, below in zip(self.written, self.split, self.merge, strict=True):
                hot, cold = was > above, was < below
                least = np.where(hot, above, np.where(cold, -np.inf, below)) / shares
                most = np.where(hot, np.inf, np.where(cold, np.minimum(below, above), above)) / shares
                bounds.append((float(np.fmax.reduce(least)), float(np.fmin.reduce(most))))
        return bounds

    def _write(self, columns: Mask, rates: Sequence[Floats], instants: Wholes, rows: Wholes) -> None:
        chosen = np.flatnonzero(columns)
        for metric, one in enumerate(rates):
            self.written[metric, chosen] = one[rows[chosen], chosen]
        self.modified_at[chosen] = instants[rows[chosen]]

    def _observe_cold(self, rates: Sequence[Floats], instants: Wholes) -> None:
        cold = self._is_cold(rates)
        warm = ~cold
        since_start = ~any_along(warm, 0)
        goes_on = since_start & (self.cold_since != NOT_COLD) & self._is_cold(self.written[:, None, :])[0]
        run_starts = np.where(since_start, 0, len(instants) - warm[::-1].argmax(axis=0))
        began = instants[np.minimum(run_starts, len(instants) - 1)]
        self.cold_since = np.where(cold[-1], np.where(goes_on, self.cold_since, began), NOT_COLD)

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
