"""Who may take a bundle: policy, room for topics, anti-affinity, even spread, in that order."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from controller.bundles.domain.balancing.placement.occupancy import Occupancy
from controller.bundles.domain.balancing.settings import BalanceSettings
from controller.bundles.domain.cluster import Broker, Bundle, Cluster, NamespacePolicy
from tests.unit.bundles.domain.balancing import clusters as make

SETTINGS = BalanceSettings()
SPARE = make.bundle(99, None, 1)


def occupancy(
    names: str,
    bundles: tuple[Bundle, ...] = (),
    policies: Mapping[str, NamespacePolicy] | None = None,
    settings: BalanceSettings = SETTINGS,
    domains: Mapping[str, str] | None = None,
) -> Occupancy:
    brokers = tuple(make.broker(name, 10, bundles, domain=(domains or {}).get(name)) for name in names)
    return Occupancy(Cluster(brokers, (*bundles, SPARE), policies or {}), settings)


def test_only_brokers_that_report_and_that_the_policy_leaves_are_candidates() -> None:
    policies = {"t/ns": NamespacePolicy(frozenset({"b", "c", "silent"}))}
    brokers = (*(make.broker(name, 10) for name in "abc"), Broker("silent"))
    there = Occupancy(Cluster(brokers, (SPARE,), policies), SETTINGS)
    assert there.candidates(SPARE) == ("b", "c")
    assert there.may_take(SPARE, "b")
    assert not there.may_take(SPARE, "a")


def test_where_the_policy_leaves_nobody_there_is_nobody() -> None:
    policies = {"t/ns": NamespacePolicy(frozenset())}
    assert occupancy("ab", policies=policies).candidates(SPARE) == ()


def test_a_broker_with_too_many_topics_is_out_unless_all_have() -> None:
    settings = BalanceSettings(max_topics_per_broker=10, spread_namespaces=False)
    full = make.bundle(1, "a", 1, topics=11)
    there = occupancy("ab", (full,), settings=settings)
    assert there.candidates(SPARE) == ("b",)
    # Where somebody is told to take it, its own topics count as well.
    edge = occupancy("ab", (make.bundle(1, "a", 1, topics=10),), settings=settings)
    assert edge.candidates(SPARE) == ("a", "b")
    assert not edge.may_take(SPARE, "a")
    both = occupancy("ab", (full, make.bundle(2, "b", 1, topics=11)), settings=settings)
    assert both.candidates(SPARE) == ("a", "b")


def test_a_namespace_is_spread_evenly_and_moves_on_the_way_count() -> None:
    bundles = (
        make.bundle(0, "a", 1),
        make.bundle(1, "a", 1),
        make.bundle(2, "b", 1),
        make.bundle(3, "c", 1, namespace="t/x"),
    )
    there = occupancy("abc", bundles)
    assert there.candidates(SPARE) == ("c",)
    there.move(make.bundle_id(0), "c")
    assert there.candidates(SPARE) == ("a", "b", "c")
    anyhow = occupancy("abc", bundles, settings=BalanceSettings(spread_namespaces=False))
    assert anyhow.candidates(SPARE) == ("a", "b", "c")


@pytest.mark.parametrize("namespace", ["pulsar/system", "pulsar/host:8080"])
def test_pulsars_own_namespaces_are_spread_whatever_the_setting(namespace: str) -> None:
    own = make.bundle(0, "a", 1, namespace=namespace)
    there = occupancy("ab", (own,), settings=BalanceSettings(spread_namespaces=False))
    assert there.candidates(Bundle(f"{namespace}/0x00000005_0x00000006")) == ("b",)


GROUP = {name: NamespacePolicy(anti_affinity_group="g") for name in ("t/ns", "t/one", "t/two")}


def test_namespaces_of_a_group_keep_to_different_domains_and_then_brokers() -> None:
    held = (make.bundle(0, "a", 1, namespace="t/one"),)
    racks = {"a": "rack-1", "b": "rack-1", "c": "rack-2", "d": "rack-2"}
    assert occupancy("abcd", held, GROUP, domains=racks).candidates(SPARE) == ("c", "d")
    held += (make.bundle(1, "c", 1, namespace="t/two"),)
    there = occupancy("abcd", held, GROUP, domains=racks)
    assert there.candidates(SPARE) == ("b", "d")
    assert not there.may_take(SPARE, "a")
    assert there.may_take(SPARE, "d")


def test_two_bundles_of_one_namespace_count_once_for_its_group() -> None:
    held = (
        make.bundle(0, "a", 1, namespace="t/one"),
        make.bundle(1, "a", 1, namespace="t/one"),
        make.bundle(2, "b", 1, namespace="t/two"),
    )
    settings = BalanceSettings(spread_namespaces=False)
    assert occupancy("ab", held, GROUP, settings).candidates(SPARE) == ("a", "b")


def test_a_bundle_does_not_join_another_namespace_of_its_group() -> None:
    """Both brokers have one namespace of the group; each bundle stays with its own."""
    held = (
        make.bundle(0, "a", 1, namespace="t/one"),
        make.bundle(1, "a", 1, namespace="t/one"),
        make.bundle(2, "b", 1, namespace="t/two"),
    )
    there = occupancy("ab", held, GROUP)
    assert there.candidates(held[0]) == ("a",)
    assert not there.may_take(held[0], "b")
    assert occupancy("abc", held, GROUP).may_take(held[0], "c")
    racks = occupancy("abc", held, GROUP, domains={"a": "r1", "b": "r2", "c": "r2"})
    assert not racks.may_take(held[0], "c")
    assert racks.candidates(held[0]) in (("a",), ())


def test_a_namespace_without_a_policy_keeps_off_the_brokers_of_others() -> None:
    brokers = tuple(make.broker(name, 10) for name in "abc")
    there = Occupancy(Cluster(brokers, (SPARE,), {}, frozenset({"b", "c"})), SETTINGS)
    assert there.candidates(SPARE) == ("b", "c")
    assert not there.may_take(SPARE, "a")
