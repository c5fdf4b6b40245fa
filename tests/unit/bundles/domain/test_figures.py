"""Averages, totals, the order of bundles and the list of the heaviest."""

from __future__ import annotations

import pytest

from controller.bundles.domain.figures import (
    UNKNOWN_LOAD,
    BundleLoad,
    TimeAverage,
    broker_totals,
    bundle_order,
    moving_average,
    top_bundles,
)
from controller.bundles.domain.stats import BundleStats


@pytest.mark.parametrize(
    ("old", "current", "history", "new"), [(None, 0.4, 0.9, 0.4), (1.0, 0.0, 0.9, 0.9), (0.5, 1.0, 0.0, 1.0)]
)
def test_a_moving_average_begins_with_its_first_observation(
    old: float | None, current: float, history: float, new: float
) -> None:
    assert moving_average(old, current, history) == pytest.approx(new)


def test_the_first_sample_replaces_the_seeds() -> None:
    assert (UNKNOWN_LOAD.short_term.msg_rate, UNKNOWN_LOAD.long_term.byte_rate) == (100.0, 100_000.0)
    load = UNKNOWN_LOAD.with_sample(BundleStats(1, 2, 30, 40))
    for average in (load.short_term, load.long_term):
        assert (average.sample_count, average.msg_rate, average.byte_rate) == (1, 3, 70)


def test_an_average_is_plain_until_it_is_full_and_then_forgets_slowly() -> None:
    average = TimeAverage(3)
    seen = []
    for rate in (3.0, 6.0, 9.0, 12.0):
        average = average.with_sample(BundleStats(msg_rate_in=rate))
        seen.append(average.msg_rate_in)
    assert seen == [3.0, 4.5, 6.0, 8.0]  # the fourth counts a third, as all to come
    assert average.sample_count == 3


def test_short_and_long_term_differ_after_ten_samples() -> None:
    load = BundleLoad()
    for rate in [0.0] * 10 + [110.0]:
        load = load.with_sample(BundleStats(byte_rate_in=rate))
    assert load.short_term.byte_rate == pytest.approx(11.0)
    assert load.long_term.byte_rate == pytest.approx(10.0)


def test_totals_count_a_bundle_not_heard_of_at_the_seeds() -> None:
    known = BundleLoad().with_sample(BundleStats(1, 1, 10, 10))
    totals = broker_totals([known, None, known])
    assert (totals.short_term_msg_rate, totals.short_term_byte_rate) == (104, 100_040)
    assert (totals.long_term_msg_rate, totals.long_term_byte_rate) == (104, 100_040)


@pytest.mark.parametrize(
    ("lighter", "heavier"),
    [
        (BundleStats(byte_rate_in=49_999), BundleStats(byte_rate_in=50_000)),
        (BundleStats(byte_rate_out=149_999), BundleStats(byte_rate_out=150_000)),
        (BundleStats(49, 0), BundleStats(25, 25)),
        (BundleStats(topic_count=499), BundleStats(topic_count=1, producer_count=250, consumer_count=249)),
        (BundleStats(cache_size_bytes=99_999), BundleStats(cache_size_bytes=100_000)),
        (BundleStats(byte_rate_out=9e9), BundleStats(byte_rate_in=100_000)),  # the first figure decides
    ],
)
def test_bundles_are_told_apart_by_whole_buckets(lighter: BundleStats, heavier: BundleStats) -> None:
    """Rates are rounded to a bucket and counts cut off to one, as `NamespaceBundleStats` does."""
    assert bundle_order(lighter) < bundle_order(heavier)
    assert bundle_order(BundleStats()) == bundle_order(BundleStats(49, 0, 49_999, 49_999, 1, 1, 1, 9))


def test_the_order_agrees_with_itself_where_small_differences_do_not() -> None:
    """apache/pulsar#24754: with "equal within 100,000", 0 equals 60,000 equals 120,000, but 0 is below 120,000."""
    none, some, more = (bundle_order(BundleStats(byte_rate_in=rate)) for rate in (0.0, 60_000.0, 120_000.0))
    assert none < some == more


def test_the_heaviest_are_listed_lightest_first_and_equal_ones_by_name() -> None:
    loads = {"t/n/c": 5e5, "t/n/a": 2e5, "t/n/b": 2e5, "t/x/d": 9e5, "t/n/e": 0.0}
    stats = {name: BundleStats(byte_rate_in=rate) for name, rate in loads.items()}
    assert top_bundles(stats, 2) == ("t/n/c", "t/x/d")
    assert top_bundles(stats, 3) == ("t/n/a", "t/n/c", "t/x/d")
    assert top_bundles(stats, 10) == ("t/n/e", "t/n/a", "t/n/b", "t/n/c", "t/x/d")
    assert top_bundles(stats, 2, lambda name: not name.startswith("t/x/")) == ("t/n/a", "t/n/c")
