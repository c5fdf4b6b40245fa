"""Load: the order of bundles by weight, averages over samples, and usage of resources: shares, the three maxima, and
reports that lack limits.
"""

from __future__ import annotations

import pytest

from controller.bundles.domain.balancing.settings import BalanceSettings
from controller.bundles.domain.load import (
    UNKNOWN_LOAD,
    BrokerResources,
    BundleLoad,
    BundleStats,
    ResourceUsage,
    TimeAverage,
    bundle_order,
    dominating_resource,
    max_usage,
    moving_average,
    top_bundles,
    unknown_usage,
    weighted_max_usage,
)


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


DEFAULT = BalanceSettings().weights


def resources(
    cpu: float = 0, direct: float = 0, into: float = 0, out: float = 0, heap: float = 0
) -> BrokerResources:
    return BrokerResources(*(ResourceUsage(percent, 100) for percent in (cpu, direct, into, out, heap)))


@pytest.mark.parametrize(
    ("usage", "limit", "fraction"), [(30, 100, 0.3), (5, 4, 1.25), (5, 0, 0.0), (5, -1, 0.0), (0, 7, 0.0)]
)
def test_a_share_of_a_limit_that_is_unknown_is_nothing(usage: float, limit: float, fraction: float) -> None:
    assert ResourceUsage(usage, limit).fraction == fraction


def test_the_plain_maximum_leaves_the_heap_out() -> None:
    assert max_usage(resources(10, 40, 20, 30, 99)) == 0.4


def test_weights_scale_before_the_maximum_is_taken() -> None:
    weights = DEFAULT | {"cpu": 0.5, "direct_memory": 0, "bandwidth_in": 1, "bandwidth_out": 2}
    assert weighted_max_usage(resources(90, 99, 40, 30), weights) == 0.6
    assert dominating_resource(resources(90, 99, 40, 30), weights) == "bandwidth_out"
    assert dominating_resource(resources(40, 0, 40, 40), DEFAULT) == "cpu"


@pytest.mark.parametrize(
    ("percents", "usage"), [((50, 0, 170, 0), 1.7), ((101, 0, 0, 0), 1.01), ((60, 0, 0, 20), 0.6)]
)
def test_a_limit_that_is_exceeded_counts_as_it_is(percents: tuple[float, ...], usage: float) -> None:
    assert weighted_max_usage(resources(*percents), DEFAULT) == usage


def test_a_report_without_a_limit_that_others_report_leaves_the_usage_unknown() -> None:
    whole, blind = resources(50, 40, 30, 20), BrokerResources(direct_memory=ResourceUsage(40, 100))
    weights = {**dict.fromkeys(DEFAULT, 0.0), "cpu": 1.0, "direct_memory": 1.0}

    assert unknown_usage({"a": whole, "b": blind}, weights) == {"b": {"cpu"}}
    assert unknown_usage({"b": blind}, weights) == {}
    assert unknown_usage({"b": blind}, weights | {"direct_memory": 0.0}) == {"b": frozenset()}
