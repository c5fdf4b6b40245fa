"""The cluster that a cycle sees: names given once, owners, namespaces that must stay."""

from __future__ import annotations

import pytest

from controller.bundles.domain.cluster import (
    Broker,
    Bundle,
    Cluster,
    belongs_to_a_broker,
    is_system_namespace,
    namespace_of,
)
from controller.domain.errors import InvalidInput
from tests.unit.bundles.domain.balancing import clusters as make


def test_a_name_given_twice_is_refused() -> None:
    with pytest.raises(InvalidInput, match="broker b is given more than once"):
        Cluster((Broker("b"), Broker("a"), Broker("b")))
    with pytest.raises(InvalidInput, match="bundle t/n/0x1_0x2 is given more than once"):
        Cluster((), (Bundle("t/n/0x1_0x2"), Bundle("t/n/0x1_0x2", "b")))


def test_owners_change_and_nothing_else() -> None:
    before = make.cluster({"a": 50, "b": 10}, {"a": [3, 4], "b": [1]})
    after = before.with_owners({make.bundle_id(0): "b"})

    assert [one.bundle_id for one in after.bundles_of("b")] == [make.bundle_id(0), make.bundle_id(2)]
    assert after.brokers == before.brokers
    assert [one.stats for one in after.bundles] == [one.stats for one in before.bundles]


@pytest.mark.parametrize(
    ("namespace", "of_a_broker", "system"),
    [
        ("pulsar/system", False, True),
        ("pulsar/host:8080", True, True),
        ("pulsar/cluster/host:8080", True, True),
        ("sla-monitor/host:8080", True, True),
        ("pulsar/other", False, False),
        ("public/default", False, False),
    ],
)
def test_namespaces_of_one_broker_and_of_pulsar(namespace: str, of_a_broker: bool, system: bool) -> None:
    assert belongs_to_a_broker(namespace) is of_a_broker
    assert is_system_namespace(namespace) is system
    assert namespace_of(f"{namespace}/0x00000000_0xffffffff") == namespace
