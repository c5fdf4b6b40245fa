"""Merges of cold bundles as a cycle sees them: what is silent, what is empty, and how long it has been so."""

from __future__ import annotations

import pytest

from controller.bundles.domain.balance_cycle import BalanceInputs
from controller.bundles.domain.balance_settings import BalanceSettings
from controller.bundles.domain.balance_state import BalanceState
from controller.bundles.domain.cluster import Broker, Bundle, Cluster
from controller.bundles.domain.cycle import CycleInputs
from controller.bundles.domain.merge_answers import ApartReason
from controller.bundles.domain.merge_look import look_for_merges
from controller.bundles.domain.namespace_bundles import NamespaceBundles
from controller.bundles.domain.split_policy import SplitPolicy
from controller.bundles.domain.stats import BundleStats
from tests.unit.bundles.domain.clusters import NOW_MS, broker

NAMESPACE = "t/ns"
CUT = NamespaceBundles.equal(NAMESPACE, 8).bundles
LONG = 60
"""Looks in a row that a bundle has to be cold for."""


def inputs(owners: list[str | None], brokers: list[Broker]) -> CycleInputs:
    """Eight bundles without load; those without an owner are reported by nobody."""
    found = tuple(
        Bundle(str(cut), owner, None if owner is None else BundleStats(topic_count=1))
        for cut, owner in zip(CUT, owners, strict=True)
    )
    balance = BalanceInputs(
        cluster=Cluster(tuple(brokers), found),
        settings=BalanceSettings(),
        state=BalanceState(),
        now_ms=NOW_MS,
    )
    return CycleInputs(balance=balance, policies={NAMESPACE: SplitPolicy()})


def test_what_was_cold_for_long_is_planned_and_counted_on() -> None:
    verdict = look_for_merges(inputs(["a"] * 8, [broker("a", 1)]), dict.fromkeys(CUT, LONG))[NAMESPACE]

    assert verdict.plan is not None
    assert verdict.plan.after.count == 4  # never fewer
    assert verdict.cold_cycles == dict.fromkeys(CUT, LONG + 1)


def test_a_bundle_nobody_serves_is_empty_where_every_broker_was_heard() -> None:
    verdict = look_for_merges(inputs([None] * 8, [broker("a", 1)]), dict.fromkeys(CUT, LONG))[NAMESPACE]
    assert verdict.plan is not None


def test_a_bundle_nobody_serves_is_silent_where_a_broker_was_not_heard() -> None:
    brokers = [broker("a", 1), Broker("b", None)]
    verdict = look_for_merges(inputs([None] * 8, brokers), dict.fromkeys(CUT, LONG))[NAMESPACE]

    assert verdict.plan is None
    assert {one.reason for one in verdict.apart} == {ApartReason.NOT_REPORTED}


@pytest.mark.parametrize("looks", [0, LONG - 2])
def test_what_became_cold_lately_stays_apart(looks: int) -> None:
    verdict = look_for_merges(inputs(["a"] * 8, [broker("a", 1)]), dict.fromkeys(CUT, looks))[NAMESPACE]

    assert verdict.plan is None
    assert {one.reason for one in verdict.apart} == {ApartReason.COLD_CYCLES}
