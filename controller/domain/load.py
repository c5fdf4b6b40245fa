"""Load of a segment: the record a decision reads, and the meaning of the aggregation that writes it.

The record and its thresholds are read in production. The collector lands counter samples, the aggregation turns them
into rates and rates into records, and the evaluator reads the records. What is hot or cold enough to act on is the
evaluator's business.

Nothing in production runs `rates_from_counters`, `next_record` or `is_material_change`. They define what the
aggregation must answer. Two queries compute the same for many segments at once: `spark_jobs/load_aggregation.py` and
its twin in SQL, `store/load/twin.py`. The tests hold both against these functions, and `is_material_change` against
Pulsar itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from controller.domain.errors import InvalidInput
from controller.domain.shown import shown
from controller.domain.whole_numbers import LARGEST_FLOAT, MOST

METRICS = ("msg_rate_in", "byte_rate_in", "msg_rate_out", "byte_rate_out")
"""The four metrics in Pulsar's order, which decides ties."""

DEFAULT_WINDOW_MS = 60_000
DEFAULT_CHANGE_THRESHOLD = 0.25

FLOOR_FRACTION = 0.01
"""A change below this fraction of a metric's merge threshold is noise: 10 messages/s with the defaults."""


LONGEST_SOURCE = 512
"""Characters in the name of a source of samples, at most: the name is a key in PostgreSQL."""


@dataclass(frozen=True, slots=True)
class LoadStats:
    """Rates of one segment, messages and bytes per second, in Pulsar's order of metrics."""

    msg_rate_in: float = 0.0
    byte_rate_in: float = 0.0
    msg_rate_out: float = 0.0
    byte_rate_out: float = 0.0

    @property
    def rates(self) -> tuple[float, float, float, float]:
        """The four rates in the order of `METRICS`."""
        return self.msg_rate_in, self.byte_rate_in, self.msg_rate_out, self.byte_rate_out

    @property
    def are_rates(self) -> bool:
        """Whether each is finite and not negative. What is not was never measured."""
        return (
            0 <= self.msg_rate_in <= LARGEST_FLOAT
            and 0 <= self.byte_rate_in <= LARGEST_FLOAT
            and 0 <= self.msg_rate_out <= LARGEST_FLOAT
            and 0 <= self.byte_rate_out <= LARGEST_FLOAT
        )


@dataclass(frozen=True, slots=True)
class LoadRecord:
    """What is stored of a segment's load; instants are milliseconds since the Unix epoch.

    `modified_at`: when `stats` was last written. `cold_since`: since when all four rates have been
    below the merge thresholds in force, None while they are not. `observed_at`: the freshness of the
    source that reports the segment, which advances without a write.
    """

    stats: LoadStats
    modified_at: int
    cold_since: int | None
    observed_at: int


@dataclass(frozen=True, slots=True)
class LoadThresholds:
    """Split and merge thresholds in force, per segment and second."""

    split: LoadStats
    merge: LoadStats

    def is_cold(self, stats: LoadStats) -> bool:
        """All four rates strictly below their merge thresholds; a threshold of 0 means never."""
        return all(rate < limit for rate, limit in zip(stats.rates, self.merge.rates, strict=True))

    def sides(self, stats: LoadStats) -> tuple[bool, ...]:
        """For each metric: whether the rate is above the split threshold, then whether it is below the
        merge threshold.
        """
        rates = stats.rates
        above = (rate > limit for rate, limit in zip(rates, self.split.rates, strict=True))
        below = (rate < limit for rate, limit in zip(rates, self.merge.rates, strict=True))
        return (*above, *below)


@dataclass(frozen=True, slots=True)
class LoadUpdate:
    """The record after an observation; `must_write` is False when only `observed_at` advanced."""

    record: LoadRecord
    must_write: bool


def is_material_change(
    last: LoadStats, current: LoadStats, threshold: float = DEFAULT_CHANGE_THRESHOLD
) -> bool:
    """Pulsar's rule: any rate moved by more than `threshold` relative to the last written one.

    The comparison is strict; from 0 any other rate is a change.
    """
    return any(
        abs(now - was) / was > threshold if was else now != 0
        for was, now in zip(last.rates, current.rates, strict=True)
    )


def next_record(
    previous: LoadRecord | None,
    stats: LoadStats,
    observed_at: int,
    thresholds: LoadThresholds,
    change_threshold: float = DEFAULT_CHANGE_THRESHOLD,
    *,
    strict_pulsar: bool = False,
) -> LoadUpdate:
    """What to keep after observing `stats`: the one rule of the aggregation.

    Rates are written when there is no record, when one moved materially (Pulsar's relative rule, and by more than
    `FLOOR_FRACTION` of its merge threshold, so that 1 → 2 messages/s is no news), or when one crossed a split or merge
    threshold in force, however little it moved. `modified_at` moves with the rates only. `cold_since` starts at the
    first cold observation and survives any change that stays cold, so a nearly idle segment with jitter becomes
    mergeable; new thresholds restart it unless the record is cold under them as well. Silence does not end it: the
    evaluator treats a silent segment as stale. An observation older than the record's changes nothing.

    With `strict_pulsar` the rates are written when one moved materially, however little that is, and then only.

    Raises InvalidInput for rates that are negative or not finite; a record that holds such is written anew.
    """
    if not stats.are_rates:
        rates = ", ".join(map(shown, stats.rates))
        raise InvalidInput(f"rates {rates} are not all finite and >= 0; drop the observation")
    cold = thresholds.is_cold(stats)
    if previous is None:
        return LoadUpdate(LoadRecord(stats, observed_at, observed_at if cold else None, observed_at), True)
    if observed_at < previous.observed_at:
        return LoadUpdate(previous, False)
    cold_since = None
    if cold:
        goes_on = previous.cold_since is not None and thresholds.is_cold(previous.stats)
        cold_since = previous.cold_since if goes_on else observed_at
    if _must_rewrite(previous.stats, stats, thresholds, change_threshold, strict_pulsar):
        return LoadUpdate(LoadRecord(stats, observed_at, cold_since, observed_at), True)
    record = LoadRecord(previous.stats, previous.modified_at, cold_since, observed_at)
    return LoadUpdate(record, cold_since != previous.cold_since)


def _must_rewrite(
    last: LoadStats,
    current: LoadStats,
    thresholds: LoadThresholds,
    change_threshold: float,
    strict_pulsar: bool,
) -> bool:
    if not last.are_rates:
        return True
    if strict_pulsar:
        return is_material_change(last, current, change_threshold)
    return _is_news(last, current, thresholds, change_threshold)


def _is_news(
    last: LoadStats, current: LoadStats, thresholds: LoadThresholds, change_threshold: float
) -> bool:
    if thresholds.sides(last) != thresholds.sides(current):
        return True
    return any(
        abs(now - was) > FLOOR_FRACTION * merge_at and (not was or abs(now - was) / was > change_threshold)
        for was, now, merge_at in zip(last.rates, current.rates, thresholds.merge.rates, strict=True)
    )


@dataclass(frozen=True, slots=True)
class CounterSample:
    """The four monotonic counters of one segment as one source (a broker) had them at one instant.

    Raises InvalidInput for a counter outside 0..2^63-1 or an instant beyond 64 bits: no broker and no file holds such.
    """

    source: str
    instant_ms: int
    msg_in: int
    byte_in: int
    msg_out: int
    byte_out: int

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
    """Rates over a window, the latest instant they rest on, and how much of the window was observed."""

    stats: LoadStats
    observed_at: int
    covered_ms: int


def rates_from_counters(
    samples: Iterable[CounterSample], window_end_ms: int, window_ms: int = DEFAULT_WINDOW_MS
) -> WindowLoad | None:
    """Rates of one segment over `(window_end_ms - window_ms, window_end_ms]`, None if nothing is known.

    1. Samples after the window's end do not count; several of one source at one instant are one, the
       greatest of each counter. The order of arrival plays no part.
    2. Each pair of consecutive samples of one source is an interval. Its increase, counter by counter, is
       the difference, or the later value where the counter went back (restart: it counts from 0 again).
       A source's first sample is a base line and no increase: it may have counted for months.
    3. The increase is spread evenly over its interval; the window gets the part that overlaps it.
    4. The rate is the sum over intervals and sources, divided by the time observed: the sum of the
       overlaps, at most the window. So the gap of an owner's move or of a source that began inside the
       window is left out instead of counted as zero, and the owners' increases add up.
    """
    window_start_ms = window_end_ms - window_ms
    totals = [0.0, 0.0, 0.0, 0.0]
    covered_ms = observed_at = 0
    for before, after in _intervals(s for s in samples if s.instant_ms <= window_end_ms):
        overlap_ms = after.instant_ms - max(before.instant_ms, window_start_ms)
        if overlap_ms <= 0:
            continue
        share = overlap_ms / (after.instant_ms - before.instant_ms)
        for index, (was, now) in enumerate(zip(before.counters, after.counters, strict=True)):
            totals[index] += (now - was if now >= was else now) * share
        covered_ms += overlap_ms
        observed_at = max(observed_at, after.instant_ms)
    if not covered_ms:
        return None
    covered_ms = min(covered_ms, window_ms)
    return WindowLoad(LoadStats(*(total * 1000 / covered_ms for total in totals)), observed_at, covered_ms)


def _intervals(samples: Iterable[CounterSample]) -> Iterator[tuple[CounterSample, CounterSample]]:
    merged: dict[tuple[str, int], CounterSample] = {}
    for sample in samples:
        key = (sample.source, sample.instant_ms)
        known = merged.get(key)
        merged[key] = sample if known is None else _greatest(known, sample)
    for before, after in pairwise(merged[key] for key in sorted(merged)):
        if before.source == after.source:
            yield before, after


def _greatest(one: CounterSample, other: CounterSample) -> CounterSample:
    return CounterSample(
        one.source, one.instant_ms, *map(max, zip(one.counters, other.counters, strict=True))
    )
