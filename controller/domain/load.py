"""Load of a segment: the record a decision reads, and the meaning of the aggregation that writes it.

The record and its thresholds are read in production. The collector lands counter samples, the aggregation turns them
into rates and rates into records, and the evaluator reads the records. What is hot or cold enough to act on is the
evaluator's business.

`next_record` decides what the aggregation writes. Tests compare `is_material_change` with Pulsar itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from controller.domain.errors import InvalidInput
from controller.domain.shown import shown
from controller.domain.whole_numbers import LARGEST_FLOAT

METRICS = ("msg_rate_in", "byte_rate_in", "msg_rate_out", "byte_rate_out")
"""The four metrics in Pulsar's order, which decides ties."""

DEFAULT_WINDOW_MS = 60_000
DEFAULT_CHANGE_THRESHOLD = 0.25

FLOOR_FRACTION = 0.01
"""A change below this fraction of a metric's merge threshold is noise: 10 messages/s with the defaults."""


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
    if strict_pulsar:
        is_news = is_material_change(previous.stats, stats, change_threshold)
    else:
        is_news = _is_news(previous.stats, stats, thresholds, change_threshold)
    if is_news or not previous.stats.are_rates:
        return LoadUpdate(LoadRecord(stats, observed_at, cold_since, observed_at), True)
    record = LoadRecord(previous.stats, previous.modified_at, cold_since, observed_at)
    return LoadUpdate(record, cold_since != previous.cold_since)


def _is_news(
    last: LoadStats, current: LoadStats, thresholds: LoadThresholds, change_threshold: float
) -> bool:
    """Return True if a rate crossed a threshold, or moved by more than noise."""
    limits = zip(last.rates, current.rates, thresholds.split.rates, thresholds.merge.rates, strict=True)
    for was, now, split_at, merge_at in limits:
        if (now > split_at) != (was > split_at) or (now < merge_at) != (was < merge_at):
            return True
        moved = abs(now - was)
        if moved > FLOOR_FRACTION * merge_at and (not was or moved / was > change_threshold):
            return True
    return False
