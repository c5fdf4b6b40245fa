"""The cluster's own rules of placement, on its brokers and namespaces."""

from __future__ import annotations

from controller.bundles.domain.cluster import Cluster
from controller.bundles.domain.isolation import IsolationPolicy
from controller.bundles.domain.placement_rules import PlacementRules, ruled
from tests.unit.bundles.domain.balancing import clusters as make


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
