"""Rates of a segment from counters that readers read: the rule `judge_counters`.

Nothing in production runs the rule. It defines the rates that two queries compute for many segments at once,
`spark_jobs/load_aggregation.py` and `store/load/sql_rates.py`; a test compares both with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from operator import sub

from controller.domain.errors import InvalidInput
from controller.domain.load import DEFAULT_WINDOW_MS, METRICS, LoadStats
from controller.domain.shown import shown
from controller.domain.whole_numbers import MOST

LONGEST_SOURCE = 512
"""Characters in the name of a source of samples, or of a reader, at most: a source's name is a key in PostgreSQL."""

BESIDE = 10
"""An increase is at least as many times what a counter went back beside it. So an instant between the two is wrong by
less than a tenth of the interval.
"""


COUNTERS = ("msg_in", "byte_in", "msg_out", "byte_out")
"""The counters behind `METRICS`, in the same order."""


def for_each_metric(template: str, separator: str = ", ") -> str:
    """Return a part of a query: the template once for each metric, {m} the rate's column, {c} the counter's."""
    return separator.join(template.format(m=m, c=c) for m, c in zip(METRICS, COUNTERS, strict=True))


@dataclass(frozen=True, slots=True)
class CounterSample:
    """The four monotonic counters of one segment as one reader read them from one source (a broker) at one instant.

    `reader` names who read the counters and by which clock: instants of one reader are from a clock that was never set
    meanwhile. Raises InvalidInput for a counter outside 0..2^63-1 or an instant beyond 64 bits: no broker and no file
    holds such.
    """

    source: str
    instant_ms: int
    msg_in: int
    byte_in: int
    msg_out: int
    byte_out: int
    reader: str = ""

    def __post_init__(self) -> None:
        for value in (abs(self.instant_ms), *self.counters):
            if not 0 <= value <= MOST:
                raise InvalidInput(
                    f"sample of {self.source}: {shown(value)} is no counter and no instant of 64 bits; drop it"
                )

    @property
    def counters(self) -> tuple[int, int, int, int]:
        return self.msg_in, self.byte_in, self.msg_out, self.byte_out


@dataclass(frozen=True, slots=True)
class WindowLoad:
    """Rates over a window, the latest instant they rest on, how much of the window was observed, and by which source last."""

    stats: LoadStats
    observed_at: int
    covered_ms: int
    source: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class NoRate:
    """The counters of a segment were read in the window and went back each time, so they give no rate."""

    source: str
    """The source that was read last."""


def judge_counters(
    samples: Iterable[CounterSample], window_end_ms: int, window_ms: int = DEFAULT_WINDOW_MS
) -> WindowLoad | NoRate | None:
    """Rates of one segment over `(window_end_ms - window_ms, window_end_ms]`. None without an interval in the window.

    1. A series is what one reader read from one source. Samples after the window's end do not count; several of one
       series at one instant are one, the greatest of each counter. The order of arrival plays no part.
    2. Each pair of consecutive samples of one series is an interval. Its increase is the difference, counter by counter.
       A series' first sample is a base line and no increase: the counter may have counted for months.
    3. An interval counts only if no counter went back in it, nor in the interval before or after it by more than a
       `BESIDE`th of the increase. A smaller number does not say why it is smaller: the broker may have loaded the log
       anew, or two clocks were taken for one. A source that starts anew has another name and begins a series.
    4. The increase is spread evenly over its interval; the window gets the part that overlaps it.
    5. The rate by a reader is the sum over intervals and sources, divided by the time observed: the sum of the
       overlaps, at most the window. So the gap of an owner's move or of a source that began inside the
       window is left out instead of counted as zero, and the owners' increases add up.
    6. Readers are not added up, because they read the same counters. The reader that observed most of the window
       counts; of several the one that read last, then the one with the greatest name.
    """
    window_start_ms = window_end_ms - window_ms
    sums: dict[str, _Sum] = {}
    for one in _intervals(s for s in samples if s.instant_ms <= window_end_ms):
        if one.after.instant_ms > window_start_ms:
            sums.setdefault(one.after.reader, _Sum(window_ms)).add(one, window_start_ms)
    if not sums:
        return None
    best = sums[max(sums, key=lambda reader: (*sums[reader].observed, reader))]
    if not best.covered_ms:
        return NoRate(best.read_last[1])
    observed_at, source = best.counted_last
    rates = LoadStats(*(total * 1000 / best.covered_ms for total in best.totals))
    return WindowLoad(rates, observed_at, best.covered_ms, source)


@dataclass(frozen=True, slots=True)
class _Interval:
    before: CounterSample
    after: CounterSample
    increases: tuple[int, ...]
    counts: bool


class _Sum:
    """The intervals of one reader, in the order of sources and instants."""

    def __init__(self, window_ms: int) -> None:
        self._window_ms, self._overlaps_ms = window_ms, 0
        self.totals = [0.0, 0.0, 0.0, 0.0]
        self.counted_last = self.read_last = (0, "")
        """Instant and source."""

    def add(self, one: _Interval, window_start_ms: int) -> None:
        end = (one.after.instant_ms, one.after.source)
        self.read_last = max(self.read_last, end)
        if not one.counts:
            return
        overlap_ms = one.after.instant_ms - max(one.before.instant_ms, window_start_ms)
        share = overlap_ms / (one.after.instant_ms - one.before.instant_ms)
        for index, increase in enumerate(one.increases):
            self.totals[index] += increase * share
        self._overlaps_ms += overlap_ms
        self.counted_last = max(self.counted_last, end)

    @property
    def covered_ms(self) -> int:
        return min(self._overlaps_ms, self._window_ms)

    @property
    def observed(self) -> tuple[int, int]:
        return self.covered_ms, self.counted_last[0]


def _intervals(samples: Iterable[CounterSample]) -> Iterator[_Interval]:
    """Those of each series by time."""
    merged: dict[tuple[str, str, int], CounterSample] = {}
    for sample in samples:
        key = (sample.reader, sample.source, sample.instant_ms)
        known = merged.get(key)
        merged[key] = sample if known is None else _greatest(known, sample)
    by_series = sorted(merged)
    for _, keys in groupby(by_series, key=lambda key: key[:2]):
        pairs = list(pairwise(merged[key] for key in keys))
        increases = [tuple(map(sub, after.counters, before.counters)) for before, after in pairs]
        beside = [(), *increases, ()]
        for place, ((before, after), here) in enumerate(zip(pairs, increases, strict=True)):
            neighbours = [one for one in (beside[place], beside[place + 2]) if one]
            yield _Interval(before, after, here, _counts(here, neighbours))


def _counts(increases: tuple[int, ...], neighbours: Sequence[tuple[int, ...]]) -> bool:
    """Return True if no counter went back, nor beside this interval by too much."""
    went_back = [max(0, *(-one for one in beside)) for beside in zip(*neighbours, strict=True)] or [0] * 4
    return all(more >= 0 and more // BESIDE >= back for more, back in zip(increases, went_back, strict=True))


def _greatest(one: CounterSample, other: CounterSample) -> CounterSample:
    msg_in, byte_in, msg_out, byte_out = map(max, zip(one.counters, other.counters, strict=True))
    return CounterSample(one.source, one.instant_ms, msg_in, byte_in, msg_out, byte_out, one.reader)
