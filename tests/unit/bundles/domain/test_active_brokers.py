"""Which brokers of those on file may have bundles, as the cluster says."""

from __future__ import annotations

from controller.bundles.domain.active_brokers import with_active_brokers
from controller.bundles.domain.cluster import Cluster
from tests.unit.bundles.domain.balancing import clusters as make


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
