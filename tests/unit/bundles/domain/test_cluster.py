"""The cluster that a cycle sees: names given once, owners, the namespace of a bundle."""

from __future__ import annotations

import pytest

from controller.bundles.domain.cluster import Broker, Bundle, Cluster
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


def test_a_bundle_knows_its_namespace() -> None:
    assert Bundle("pulsar/host:8080/0x00000000_0xffffffff").namespace == "pulsar/host:8080"
