"""The rule by which the aggregation writes load records: when a changed rate is written, and since when a segment is cold.

The evaluator decides what is hot or cold enough for an action. Tests compare `is_material_change` with Pulsar itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from controller.domain.errors import InvalidInput
from controller.domain.formatting import shown
from controller.domain.load_record import LoadRecord, LoadStats, LoadThresholds

DEFAULT_CHANGE_THRESHOLD = 0.25
"""Default relative change of a rate above which its record is rewritten."""

FLOOR_FRACTION = 0.01
"""Fraction of a metric's merge threshold below which a change is noise: 10 messages/s with the defaults."""


@dataclass(frozen=True, slots=True)
class LoadUpdate:
    """The record after an observation; `must_write` is False if nothing changed, or only `observed_at` advanced."""

    record: LoadRecord
    must_write: bool


def is_material_change(
    last: LoadStats, current: LoadStats, threshold: float = DEFAULT_CHANGE_THRESHOLD
) -> bool:
    """Return True if any rate of `current` differs from the rate last written (`last`) by more than `threshold` times the
    rate last written; 0.25 is a quarter. This is Pulsar's rule.

    The comparison is strict; from 0 any other rate is a change.
    """
    return any(
        abs(after - before) / before > threshold if before else after != 0
        for before, after in zip(last.rates, current.rates, strict=True)
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
    """Return the record to keep after observing `stats` at `observed_at`, milliseconds since the Unix epoch. Nothing
    is stored. `previous`: the record so far; None if there is none. `must_write` of the result is True if the rates
    are replaced or `cold_since` changes. An observation with a time before `previous.observed_at` returns `previous`,
    with `must_write` False.

    The rates are replaced, and `modified_at` becomes `observed_at`, in three cases. First, there is no record, or the
    record contains rates that are negative or not finite. Second, a rate changed by more than `FLOOR_FRACTION` of its
    merge threshold, so that a change from 1 to 2 messages/s is ignored, and by more than `change_threshold` times the
    recorded rate; this second condition does not apply to a recorded rate of 0. Third, a rate crossed a split or
    merge threshold of `thresholds`, by however little. With `strict_pulsar`, only `is_material_change` decides about
    the rates of a valid record. Otherwise the record keeps its rates.

    If `stats` is not cold, `cold_since` is None. If `stats` is cold, `cold_since` keeps its value, provided that it
    is set and the recorded rates are cold under `thresholds` as well; otherwise `cold_since` becomes `observed_at`. A
    nearly idle segment with jitter thus becomes mergeable. Missing observations do not end `cold_since`: the
    evaluator treats a segment without observations as stale.

    Raises InvalidInput for `stats` that are negative or not finite.
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
        stays_cold = previous.cold_since is not None and thresholds.is_cold(previous.stats)
        cold_since = previous.cold_since if stays_cold else observed_at
    if not previous.stats.are_rates:
        must_rewrite = True
    elif strict_pulsar:
        must_rewrite = is_material_change(previous.stats, stats, change_threshold)
    else:
        must_rewrite = _must_rewrite(previous.stats, stats, thresholds, change_threshold)
    if must_rewrite:
        return LoadUpdate(LoadRecord(stats, observed_at, cold_since, observed_at), True)
    record = LoadRecord(previous.stats, previous.modified_at, cold_since, observed_at)
    return LoadUpdate(record, cold_since != previous.cold_since)


def _must_rewrite(
    written: LoadStats, observed: LoadStats, thresholds: LoadThresholds, change_threshold: float
) -> bool:
    """Return True if a rate crossed its split threshold (above it or not) or its merge threshold (below it or not), or
    changed by more than `FLOOR_FRACTION` of its merge threshold and by more than `change_threshold` times the written
    rate. From a written rate of 0 the last condition is not required.
    """
    limits = zip(written.rates, observed.rates, thresholds.split.rates, thresholds.merge.rates, strict=True)
    for previous, rate, split_at, merge_at in limits:
        if (rate > split_at) != (previous > split_at) or (rate < merge_at) != (previous < merge_at):
            return True
        difference = abs(rate - previous)
        if difference > FLOOR_FRACTION * merge_at and (
            not previous or difference / previous > change_threshold
        ):
            return True
    return False
