"""Usage of resources: shares, the three maxima, and reports that lack limits."""

from __future__ import annotations

import pytest

from controller.bundles.domain.balancing.settings import BalanceSettings
from controller.bundles.domain.load.broker_usage import (
    BrokerResources,
    ResourceUsage,
    dominating_resource,
    max_usage,
    unknown_usage,
    weighted_max_usage,
)

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
