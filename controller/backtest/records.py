"""Load records in arrays, by the rule of `domain.load_record_rule.next_record`; a test compares the two."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from controller.backtest.arrays import Floats, Mask, Wholes, any_along, is_nan
from controller.domain.load_record import METRICS, LoadRecord, LoadStats, LoadThresholds
from controller.domain.load_record_rule import FLOOR_FRACTION

NOT_COLD = -1
"""Value of `cold_since` for a segment that is not cold."""


class RecordArrays:
    """The load records of some segments, as arrays: `written[metric, segment]` (NaN: no record), `modified_at`,
    `cold_since` (-1: not cold), instants in milliseconds since the Unix epoch.

    Only metrics that are ever above 0 are kept, those with the indexes `metrics`; the others are always 0.
    `change_threshold`: part of the written rate by which a rate must differ to be a material change (`next_record`).
    `strict`: records are written as under `strict_pulsar`.
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
        """Replace the arrays of the records by these arrays, which are not copied."""
        self.written, self.modified_at, self.cold_since = written, modified_at, cold_since

    def move(self, new: Sequence[int], old: Sequence[int], count: int) -> None:
        """Continue with `count` segments, of which those at the indexes `new` were at `old`; the others have no record."""
        written = np.full((len(self.written), count), np.nan)
        modified_at, cold_since = np.zeros(count, np.int64), np.full(count, NOT_COLD)
        written[:, new] = self.written[:, old]
        modified_at[new], cold_since[new] = self.modified_at[old], self.cold_since[old]
        self.adopt(written, modified_at, cold_since)

    def records(self, indexes: Wholes, metrics: Sequence[int], observed_at: int) -> list[LoadRecord]:
        """Return the records of the segments at these indexes, each observed at `observed_at` (milliseconds since
        the Unix epoch). `metrics`: the metrics of the arrays, as indexes in `METRICS`; the other rates are 0. Each of
        the segments has a record.
        """
        columns = [[0.0] * len(indexes)] * len(METRICS)
        for metric, written in zip(metrics, self.written, strict=True):
            columns[metric] = written[indexes].tolist()
        return [
            LoadRecord(LoadStats(a, b, c, d), modified_at, None if since == NOT_COLD else since, observed_at)
            for a, b, c, d, modified_at, since in zip(
                *columns, self.modified_at[indexes].tolist(), self.cold_since[indexes].tolist(), strict=True
            )
        ]

    def observe(self, rates: Sequence[Floats], instants: Wholes) -> None:
        """Add `rates[metric][observation, segment]`, observed at `instants`, in the order of time. Changes the
        records and `cold_since` as `next_record` does.

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

    def write_all(self, rates: Sequence[Floats], instants: Wholes, last_rows: Wholes) -> Mask:
        """Rewrite the records by `rates[metric][observation, segment]`, observed at `instants`: in order of
        time, each observation for which `rewrites` is True of the record as rewritten so far. Rows up to
        `last_rows[segment]` (-1: none) are skipped, because the segment's record contains them. Return, for
        each segment, True if its record was rewritten. `cold_since` does not change.
        """
        row_of = np.arange(len(instants))[:, None]
        last_rows = last_rows.copy()
        written = np.zeros(len(last_rows), dtype=np.bool_)
        while True:
            is_rewritten = self.rewrites(rates) & (row_of > last_rows)
            columns = any_along(is_rewritten, 0)
            if not columns.any():
                return written
            rows = is_rewritten.argmax(axis=0)
            self._write(columns, rates, instants, rows)
            last_rows[columns] = rows[columns]
            written |= columns

    def observe_sides(self, rates: Sequence[Floats], instant: int) -> Wholes:
        """Add one observation `rates[metric][segment]` to the records that have none, and to those in which it
        crosses a threshold; `cold_since` is updated too. Return the indexes of these segments. The caller writes the other
        changes later (`write_all`).
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
        """Return, for each metric of the arrays, the lowest and the highest rate of the topic between which no segment with
        these shares (0..1 of the topic's load) crosses a threshold; infinite if there is no bound, exact except for
        rounding. Each segment must have a record.
        """
        bounds = []
        with np.errstate(divide="ignore", invalid="ignore"):
            for written, split_at, merge_at in zip(self.written, self.split, self.merge, strict=True):
                hot, cold = written > split_at, written < merge_at
                lowest = np.where(hot, split_at, np.where(cold, -np.inf, merge_at)) / shares
                highest = (
                    np.where(hot, np.inf, np.where(cold, np.minimum(merge_at, split_at), split_at)) / shares
                )
                bounds.append((float(np.fmax.reduce(lowest)), float(np.fmin.reduce(highest))))
        return bounds

    def _write(self, columns: Mask, rates: Sequence[Floats], instants: Wholes, rows: Wholes) -> None:
        """Set the record of each segment for which `columns[segment]` is True to its observation at the index `rows[segment]` of
        `rates[metric][observation, segment]`, for the metrics of `written`, and of `instants[observation]`; `cold_since` does not
        change.
        """
        indexes = np.flatnonzero(columns)
        for metric, rate in enumerate(rates):
            self.written[metric, indexes] = rate[rows[indexes], indexes]
        self.modified_at[indexes] = instants[rows[indexes]]

    def _observe_cold(self, rates: Sequence[Floats], instants: Wholes) -> None:
        """Set `cold_since` after the observations: NOT_COLD for a segment that is not cold at the last one, unchanged
        for a segment that was cold before, has cold written rates, and stayed cold, otherwise the instant of the first
        observation since which it is cold.
        """
        cold = self._is_cold(rates)
        warm = ~cold
        since_start = ~any_along(warm, 0)
        stays_cold = since_start & (self.cold_since != NOT_COLD) & self._is_cold(self.written[:, None, :])[0]
        run_starts = np.where(since_start, 0, len(instants) - warm[::-1].argmax(axis=0))
        began = instants[np.minimum(run_starts, len(instants) - 1)]
        self.cold_since = np.where(cold[-1], np.where(stays_cold, self.cold_since, began), NOT_COLD)

    def _is_cold(self, rates: Sequence[Floats] | Floats) -> Mask:
        """Return True for each segment (of each observation) whose four rates are all below the merge thresholds; so False
        for all segments if a metric that is always 0 has the merge threshold 0.
        """
        cold: Mask = np.full(rates[0].shape, self.can_be_cold)
        for rate, limit in zip(rates, self.merge, strict=True):
            cold &= rate < limit
        return cold

    def crossings(self, rates: Sequence[Floats]) -> Mask:
        """Return `[observation, segment]`: True if a rate is on another side of a threshold than the written rate. A
        missing record counts as neither above a split nor below a merge threshold.
        """
        crossed: Mask = np.zeros(rates[0].shape, dtype=np.bool_)
        for rate, written, split_at, merge_at in zip(
            rates, self.written, self.split, self.merge, strict=True
        ):
            crossed |= (rate > split_at) != (written > split_at)
            crossed |= (rate < merge_at) != (written < merge_at)
        return crossed

    def rewrites(self, rates: Sequence[Floats]) -> Mask:
        """Return `[observation, segment]`: True if the observation would rewrite the record in its current state;
        always True without a record.
        """
        is_rewritten: Mask = is_nan(self.written[0]) | np.zeros(rates[0].shape, dtype=np.bool_)
        if not self.strict:
            is_rewritten |= self.crossings(rates)
        with np.errstate(divide="ignore", invalid="ignore"):
            for rate, written, merge in zip(rates, self.written, self.merge, strict=True):
                difference = np.abs(rate - written)
                material = np.where(written == 0, rate != 0, difference / written > self.change)
                is_rewritten |= material if self.strict else material & (difference > FLOOR_FRACTION * merge)
        return is_rewritten
