"""The cluster's own rules of placement: which brokers a namespace may be on, which are everybody's, which are active,
and what cannot be read.
"""

from __future__ import annotations

from collections.abc import Set

import pytest

from controller.bundles.domain.cluster import Cluster
from controller.bundles.domain.placement_rules import (
    IsolationPolicy,
    PlacementRules,
    ruled,
    with_active_brokers,
)
from tests.unit.bundles.domain.balancing import clusters as make

ACTIVE = ("fast-1:8080", "fast-2:8080", "slow-1:8080", "slow-2:8080")
SHOP = IsolationPolicy("shop", ("acme/shop.*",), (r"fast-\d",), ("slow-1",), min_primaries=1)


LATER = IsolationPolicy("later", ("acme/.*",), ("slow-2",))
WITH_PORT = IsolationPolicy("p", ("acme/shop",), ("fast-1:8080", "slow"))
JAVA_NAMESPACE = IsolationPolicy("p", (r"\p{Alpha}+/.*",), ("fast-1",))
JAVA_BROKER = IsolationPolicy("p", ("acme/shop",), (r"\p{Alpha}+",))
ALLOWED = {
    "its primary brokers": ((SHOP,), ACTIVE, "acme/shop-eu", {"fast-1:8080", "fast-2:8080"}),
    "its secondary broker if no primary one is active": ((SHOP,), ACTIVE[2:], "acme/shop", {"slow-1:8080"}),
    "no broker if neither is active": ((SHOP,), ACTIVE[3:], "acme/shop", frozenset()),
    "anywhere, as no policy names it": ((SHOP,), ACTIVE, "acme/other", None),
    "anywhere, as names of namespaces are matched whole": ((SHOP,), ACTIVE, "our-acme/shop", None),
    "no broker, as names of brokers are matched whole and without the port": (
        (WITH_PORT,),
        ACTIVE,
        "acme/shop",
        frozenset(),
    ),
    "the first policy that names it": ((SHOP, LATER), ACTIVE, "acme/shop", {"fast-1:8080", "fast-2:8080"}),
    "the only policy that names it": ((SHOP, LATER), ACTIVE, "acme/x", {"slow-2:8080"}),
    "a namespace that Python cannot read": ((JAVA_NAMESPACE,), ACTIVE, "x/y", {"fast-1:8080"}),
    "a broker that Python cannot read": ((JAVA_BROKER,), ACTIVE, "acme/shop", frozenset()),
}


@pytest.mark.parametrize(("policies", "active", "namespace", "allowed"), ALLOWED.values(), ids=ALLOWED)
def test_the_brokers_that_a_namespace_may_be_on(
    policies: tuple[IsolationPolicy, ...], active: tuple[str, ...], namespace: str, allowed: Set[str] | None
) -> None:
    assert PlacementRules(frozenset(active), policies).isolated(namespace) == allowed


@pytest.mark.parametrize(
    ("policies", "shared"),
    [((SHOP,), {"slow-1:8080", "slow-2:8080"}), ((), None), ((JAVA_BROKER,), frozenset())],
    ids=["those that are primary for nobody", "all of them", "none if Python cannot read which are primary"],
)
def test_the_brokers_that_are_everybodys(
    policies: tuple[IsolationPolicy, ...], shared: Set[str] | None
) -> None:
    assert PlacementRules(frozenset(ACTIVE), policies).shared == shared


def test_a_policy_without_an_active_broker_is_named() -> None:
    port = IsolationPolicy("port", ("acme/other",), ("fast-1:8080",))
    java_only = IsolationPolicy("java", ("acme/java",), (r"\p{Alpha}+",))

    assert PlacementRules(frozenset(ACTIVE), (SHOP, port, java_only)).without_broker == (port, java_only)
    assert PlacementRules(frozenset(ACTIVE[2:]), (SHOP,)).without_broker == (), "a secondary broker is one"
    assert PlacementRules(None, (SHOP,)).without_broker == (SHOP,)


def test_a_cluster_whose_active_brokers_are_unknown_is_as_stored() -> None:
    cluster = make.cluster({"a": 90}, {"a": [5]})
    rules = PlacementRules(failure_domains={"a": "rack-1"}, anti_affinity_groups={"t/ns": "pair"})

    assert ruled(cluster, rules) == cluster


def test_the_cluster_s_own_rules_are_on_every_namespace_and_broker() -> None:
    rules = PlacementRules(
        active=frozenset({"a:1", "b:1"}),
        isolation=(IsolationPolicy("p", ("t/ns",), ("a",)),),
        failure_domains={"a:1": "rack-1"},
        anti_affinity_groups={"t/other": "pair"},
    )
    bundles = tuple(
        make.bundle(i, "a:1", 1, namespace=name) for i, name in enumerate(("t/ns", "t/other", "t/x"))
    )
    found = ruled(Cluster((make.broker("a:1", 10), make.broker("b:1", 10)), bundles), rules)

    assert {broker.name: broker.failure_domain for broker in found.brokers} == {"a:1": "rack-1", "b:1": None}
    assert {name: found.allowed_for(name) for name in ("t/ns", "t/other", "t/x")} == {
        "t/ns": {"a:1"},
        "t/other": {"b:1"},
        "t/x": {"b:1"},
    }
    assert found.policy_of("t/other").anti_affinity_group == "pair"
    assert not found.policy_of("t/x").binds


def _cluster() -> Cluster:
    return make.cluster({"a": 90, "b": 10, "gone": 0}, {"a": [5, 5], "b": [5], "gone": [5]})


def test_only_brokers_of_the_list_are_there_and_new_ones_have_no_report_yet() -> None:
    found = with_active_brokers(_cluster(), {"a", "b", "new"}, None)

    assert [broker.name for broker in found.brokers] == ["a", "b", "new"]
    assert [name for name, _ in found.reporting] == ["a", "b"]
    assert (
        found.bundles == _cluster().bundles
    )  # its bundles are still there, with an owner that nobody can ask


def test_a_broker_nobody_heard_is_known_and_counts_for_nothing() -> None:
    found = with_active_brokers(_cluster(), {"a", "b"}, {"a"})

    assert [broker.name for broker in found.brokers] == ["a", "b"]
    assert [name for name, _ in found.reporting] == ["a"]


def test_a_cluster_that_was_not_asked_is_as_stored() -> None:
    assert with_active_brokers(_cluster(), None, {"a"}) == _cluster()
