"""Load records in arrays, by the rule of `domain/load.next_record`; a test compares the two."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from controller.backtest.arrays import Floats, Mask, Wholes, any_along, is_nan
from controller.domain.load import FLOOR_FRACTION, METRICS, LoadRecord, LoadStats, LoadThresholds

NOT_COLD = -1


class RecordArrays:
    """The load records of some segments, as arrays: `written[metric, segment]` (NaN: no record), `modified_at`,
    `cold_since` (-1: not cold), instants in milliseconds since the Unix epoch.

    Only metrics that are ever above 0 are kept; the others are always 0.
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
        """Continue with these arrays."""
        self.written, self.modified_at, self.cold_since = written, modified_at, cold_since

    def move(self, new: Sequence[int], old: Sequence[int], count: int) -> None:
        """Continue with `count` segments, of which those at the indexes `new` were at `old`; the others have no record."""
        written = np.full((len(self.written), count), np.nan)
        modified_at, cold_since = np.zeros(count, np.int64), np.full(count, NOT_COLD)
        written[:, new] = self.written[:, old]
        modified_at[new], cold_since[new] = self.modified_at[old], self.cold_since[old]
        self.adopt(written, modified_at, cold_since)

    def records(self, places: Wholes, metrics: Sequence[int], heard_at: int) -> list[LoadRecord]:
        """Return the records of the segments at these indexes."""
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
        """Add `rates[metric][observation, segment]`, the observations in the order of time.

        Under `strict_pulsar` one observation is added at a time, because the last rates written then also determine
        `cold_since`.
        """
        if self.strict and len(instants) > 1:
            for row in range(len(instants)):
                self.observe([rate[row : row + 1] for rate in rates], instants[row : row + 1])
            return
        self._observe_cold(rates, instants)
        if len(instants) == 1:
            self._write(self.rewrites(rates)[0], rates, instants, np.zeros(rates[0].shape[1], np.int64))
            return
        self.write_all(rates, instants, np.full(rates[0].shape[1], -1))

    def write_all(self, rates: Sequence[Floats], instants: Wholes, done: Wholes) -> Mask:
        """Rewrite every record that changed, over the observations after each segment's last one `done`. Return True for
        each rewritten record.
        """
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
        """Add one observation `rates[metric][segment]` for the segments in which it crosses a threshold or is the first.
        Return the indexes of these segments. `write_all` later writes the other changes.
        """
        crossed = (self.crossings([rate[None, :] for rate in rates]) | is_nan(self.written[0]))[0]
        indexes = np.flatnonzero(crossed)
        for metric, rate in enumerate(rates):
            self.written[metric, indexes] = rate[indexes]
        self.modified_at[indexes] = instant
        cold = self._is_cold([rate[indexes] for rate in rates])
        stays_cold = cold & (self.cold_since[indexes] != NOT_COLD)
        self.cold_since[indexes] = np.where(
            stays_cold, self.cold_since[indexes], np.where(cold, instant, NOT_COLD)
        )
        return indexes

    def room(self, shares: Floats) -> list[tuple[float, float]]:
        """Return, for each metric, the lowest and the highest rate of the topic at which no segment with these shares
        crosses a threshold; exact except for rounding.
        """
        bounds = []
        with np.errstate(divide="ignore", invalid="ignore"):
            for written, above, below in zip(self.written, self.split, self.merge, strict=True):
                hot, cold = written > above, written < below
                lowest = np.where(hot, above, np.where(cold, -np.inf, below)) / shares
                highest = np.where(hot, np.inf, np.where(cold, np.minimum(below, above), above)) / shares
                bounds.append((float(np.fmax.reduce(lowest)), float(np.fmin.reduce(highest))))
        return bounds

    def _write(self, columns: Mask, rates: Sequence[Floats], instants: Wholes, rows: Wholes) -> None:
        indexes = np.flatnonzero(columns)
        for metric, rate in enumerate(rates):
            self.written[metric, indexes] = rate[rows[indexes], indexes]
        self.modified_at[indexes] = instants[rows[indexes]]

    def _observe_cold(self, rates: Sequence[Floats], instants: Wholes) -> None:
        cold = self._is_cold(rates)
        warm = ~cold
        since_start = ~any_along(warm, 0)
        stays_cold = since_start & (self.cold_since != NOT_COLD) & self._is_cold(self.written[:, None, :])[0]
        run_starts = np.where(since_start, 0, len(instants) - warm[::-1].argmax(axis=0))
        began = instants[np.minimum(run_starts, len(instants) - 1)]
        self.cold_since = np.where(cold[-1], np.where(stays_cold, self.cold_since, began), NOT_COLD)

    def _is_cold(self, rates: Sequence[Floats] | Floats) -> Mask:
        cold: Mask = np.full(rates[0].shape, self.can_be_cold)
        for rate, limit in zip(rates, self.merge, strict=True):
            cold &= rate < limit
        return cold

    def crossings(self, rates: Sequence[Floats]) -> Mask:
        """Return `[observation, segment]`: True if a rate is on another side of a threshold than the written rate."""
        crossed: Mask = np.zeros(rates[0].shape, dtype=np.bool_)
        for rate, written, above, below in zip(rates, self.written, self.split, self.merge, strict=True):
            crossed |= (rate > above) != (written > above)
            crossed |= (rate < below) != (written < below)
        return crossed

    def rewrites(self, rates: Sequence[Floats]) -> Mask:
        """Return `[observation, segment]`: True if the observation would rewrite the record in its current state."""
        news: Mask = is_nan(self.written[0]) | np.zeros(rates[0].shape, dtype=np.bool_)
        if not self.strict:
            news |= self.crossings(rates)
        with np.errstate(divide="ignore", invalid="ignore"):
            for rate, written, merge in zip(rates, self.written, self.merge, strict=True):
                change = np.abs(rate - written)
                material = np.where(written == 0, rate != 0, change / written > self.change)
                news |= material if self.strict else material & (change > FLOOR_FRACTION * merge)
        return news
