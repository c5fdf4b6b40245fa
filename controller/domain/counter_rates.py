"""Rates of a segment from counters that readers read: the rule `judge_counters`.

Production code does not run the rule. The rule defines the rates that two queries compute for many segments at once,
`spark_jobs/load_aggregation.py` and `store/load/sql_rates.py`; a test compares both with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from operator import sub

from controller.domain.errors import InvalidInput
from controller.domain.formatting import shown
from controller.domain.load_record import METRICS, LoadStats
from controller.domain.load_window import DEFAULT_WINDOW_MS
from controller.domain.whole_numbers import MOST

MAX_SOURCE_LENGTH = 512
"""Maximum length, in characters, of the name of a source of samples or of a reader: a source's name is a key in
PostgreSQL.
"""

MIN_DECREASE_RATIO = 10
"""Minimum ratio between the increase of an interval and a decrease of the same counter in an adjacent interval. An
instant between the two intervals is therefore wrong by less than a tenth of the interval.
"""


COUNTERS = ("msg_in", "byte_in", "msg_out", "byte_out")
"""Names of the counters from which `METRICS` are computed, in the same order."""


def for_each_metric(template: str, separator: str = ", ") -> str:
    """Return a part of a query: the template once for each metric, joined by the separator. {m} stands for the
    rate's column, {c} for the counter's column.
    """
    return separator.join(template.format(m=m, c=c) for m, c in zip(METRICS, COUNTERS, strict=True))


@dataclass(frozen=True, slots=True)
class CounterSample:
    """The four monotonic counters of one segment as one reader read them from one source (a broker) at one instant.

    `reader` names the process that read the counters and its clock: all instants of one reader come from a clock that
    was not set in between. Raises InvalidInput for a counter outside 0..2^63-1 or an instant beyond 64 bits, because
    neither a broker nor a file contains such a value.
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
                    f"sample of {self.source}: {shown(value)} is neither a counter nor an instant of 64 bits; drop the sample"
                )

    @property
    def counters(self) -> tuple[int, int, int, int]:
        return self.msg_in, self.byte_in, self.msg_out, self.byte_out


@dataclass(frozen=True, slots=True)
class WindowLoad:
    """Rates over a window, the latest instant that they use and the part of the window that was observed (both in
    milliseconds), and the source of the latest valid interval. Two values that differ only in the source are equal.
    """

    stats: LoadStats
    observed_at: int
    covered_ms: int
    source: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class NoRate:
    """The result for a segment whose counters were read in the window but give no rate, because a counter decreased in
    or next to each interval.
    """

    source: str
    """The source that was read last."""


def judge_counters(
    samples: Iterable[CounterSample], window_end_ms: int, window_ms: int = DEFAULT_WINDOW_MS
) -> WindowLoad | NoRate | None:
    """Return the rates of one segment, per second, over `(window_end_ms - window_ms, window_end_ms]`, milliseconds
    since the Unix epoch. Return NoRate if no interval of the reader that counts is valid, because a counter decreased
    in or next to each interval; None without an interval that ends in the window.

    1. A series consists of the samples that one reader read from one source. Samples after the window's end do not
       count; several samples of one series at one instant count as one, with the greatest value of each counter.
       The order of arrival has no effect.
    2. Each pair of consecutive samples of one series is an interval. Its increase is the difference, counter by
       counter. A series' first sample is a base line and no increase: the counter may have counted for months.
    3. An interval is valid only if no counter decreased in it, and if no counter decreased in the interval before
       or after it by more than a `MIN_DECREASE_RATIO`th of the increase. A smaller number does not show why it is
       smaller: the broker may have reloaded the log, or two clocks may have been taken for one. A source that
       restarts has another name and begins a new series.
    4. The increase is spread evenly over its interval; the window gets the part that overlaps it.
    5. The rate of a reader is the sum over valid intervals and sources, divided by the time observed: the sum of
       the overlaps, at most the window. So the gap when a log changes its owner, or before a source that began
       inside the window, is left out instead of counted as zero, and the owners' increases add up.
    6. Rates of several readers are not added, because they read the same counters. The reader that observed most of
       the window counts; of several, the reader whose latest valid interval ended last, then the reader with the
       greatest name. If no reader has a valid interval, the greatest name decides.
    """
    window_start_ms = window_end_ms - window_ms
    sums: dict[str, _Sum] = {}
    for interval in _intervals(s for s in samples if s.instant_ms <= window_end_ms):
        if interval.after.instant_ms > window_start_ms:
            sums.setdefault(interval.after.reader, _Sum(window_ms)).add(interval, window_start_ms)
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
    """Two consecutive samples of one series. `increases` has the difference of each counter, in the order of
    `COUNTERS`.
    """

    before: CounterSample
    after: CounterSample
    increases: tuple[int, ...]
    is_valid: bool


class _Sum:
    """The sums over the intervals of one reader.

    `totals` has the increases of the valid intervals, counter by counter, as far as they lie in the window. `read_last`
    is the end of the latest interval, valid or not; `counted_last` is the end of the latest valid interval.
    """

    def __init__(self, window_ms: int) -> None:
        """Begin without intervals. `window_ms`: length of the window, the limit of `covered_ms`; its start is given to
        `add`.
        """
        self._window_ms, self._overlaps_ms = window_ms, 0
        self.totals = [0.0, 0.0, 0.0, 0.0]
        self.counted_last = self.read_last = (0, "")
        """Instant in milliseconds since the Unix epoch, and source; `(0, "")` without an interval."""

    def add(self, interval: _Interval, window_start_ms: int) -> None:
        """Add the part of the interval that lies after `window_start_ms`; the interval must end after this instant. An
        interval that is not valid changes `read_last` only.
        """
        end = (interval.after.instant_ms, interval.after.source)
        self.read_last = max(self.read_last, end)
        if not interval.is_valid:
            return
        overlap_ms = interval.after.instant_ms - max(interval.before.instant_ms, window_start_ms)
        share = overlap_ms / (interval.after.instant_ms - interval.before.instant_ms)
        for index, increase in enumerate(interval.increases):
            self.totals[index] += increase * share
        self._overlaps_ms += overlap_ms
        self.counted_last = max(self.counted_last, end)

    @property
    def covered_ms(self) -> int:
        """Milliseconds that the valid intervals cover, at most the length of the window."""
        return min(self._overlaps_ms, self._window_ms)

    @property
    def observed(self) -> tuple[int, int]:
        """Sort key of a reader: the milliseconds covered, then the end of the latest valid interval."""
        return self.covered_ms, self.counted_last[0]


def _intervals(samples: Iterable[CounterSample]) -> Iterator[_Interval]:
    """Yield the intervals of each series, series by series, each in the order of time. Samples of one series at one
    instant are merged to their greatest counters.
    """
    merged: dict[tuple[str, str, int], CounterSample] = {}
    for sample in samples:
        key = (sample.reader, sample.source, sample.instant_ms)
        earlier = merged.get(key)
        merged[key] = sample if earlier is None else _greatest(earlier, sample)
    by_series = sorted(merged)
    for _, keys in groupby(by_series, key=lambda key: key[:2]):
        pairs = list(pairwise(merged[key] for key in keys))
        increases = [tuple(map(sub, after.counters, before.counters)) for before, after in pairs]
        padded = [(), *increases, ()]
        for index, ((before, after), increase) in enumerate(zip(pairs, increases, strict=True)):
            neighbours = [adjacent for adjacent in (padded[index], padded[index + 2]) if adjacent]
            yield _Interval(before, after, increase, _is_valid(increase, neighbours))


def _is_valid(increases: tuple[int, ...], neighbours: Sequence[tuple[int, ...]]) -> bool:
    """Return True if an interval is valid: no counter decreased in the interval, nor, in a neighbour, by more than a
    `MIN_DECREASE_RATIO`th of this interval's increase of the counter. `increases`: the differences of the counters in
    the interval; `neighbours`: the same differences in the intervals before and after it, as far as they exist.
    """
    decreases = [max(0, *(-change for change in changes)) for changes in zip(*neighbours, strict=True)]
    return all(
        increase >= 0 and increase // MIN_DECREASE_RATIO >= decrease
        for increase, decrease in zip(increases, decreases or [0] * 4, strict=True)
    )


def _greatest(sample: CounterSample, other: CounterSample) -> CounterSample:
    """Return `sample` with the greater value of each counter of the two samples."""
    msg_in, byte_in, msg_out, byte_out = map(max, zip(sample.counters, other.counters, strict=True))
    return CounterSample(sample.source, sample.instant_ms, msg_in, byte_in, msg_out, byte_out, sample.reader)
