"""The order of bundles by weight, and the list of the heaviest."""

from __future__ import annotations

import pytest

from controller.bundles.domain.load.stats import BundleStats, bundle_order, top_bundles


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
