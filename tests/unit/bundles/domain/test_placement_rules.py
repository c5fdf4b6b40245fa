"""Which brokers of those on file may have bundles, as the cluster says."""

from __future__ import annotations

from controller.bundles.domain.cluster import Cluster
from controller.bundles.domain.isolation import IsolationPolicy
from controller.bundles.domain.placement_rules import PlacementRules, ruled
from tests.unit.bundles.domain.balancing import clusters as make


def _cluster() -> Cluster:
    return make.cluster({"a": 90, "b": 10, "gone": 0}, {"a": [5, 5], "b": [5], "gone": [5]})


def test_only_brokers_of_the_list_are_there_and_new_ones_have_no_report_yet() -> None:
    found = ruled(_cluster(), PlacementRules(active=frozenset({"a", "b", "new"})), None)

    assert [broker.name for broker in found.brokers] == ["a", "b", "new"]
    assert [name for name, _ in found.reporting] == ["a", "b"]
    assert (
        found.bundles == _cluster().bundles
    )  # its bundles are still there, with an owner that nobody can ask


def test_a_broker_nobody_heard_is_known_and_counts_for_nothing() -> None:
    found = ruled(_cluster(), PlacementRules(active=frozenset({"a", "b"})), {"a"})

    assert [broker.name for broker in found.brokers] == ["a", "b"]
    assert [name for name, _ in found.reporting] == ["a"]


def test_a_cluster_that_was_not_asked_is_as_stored() -> None:
    assert ruled(_cluster(), PlacementRules(), {"a"}) == _cluster()


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
    found = ruled(Cluster((make.broker("a:1", 10), make.broker("b:1", 10)), bundles), rules, None)

    assert {broker.name: broker.failure_domain for broker in found.brokers} == {"a:1": "rack-1", "b:1": None}
    assert {name: found.allowed_for(name) for name in ("t/ns", "t/other", "t/x")} == {
        "t/ns": {"a:1"},
        "t/other": {"b:1"},
        "t/x": {"b:1"},
    }
    assert found.policy_of("t/other").anti_affinity_group == "pair"
    assert not found.policy_of("t/x").binds
