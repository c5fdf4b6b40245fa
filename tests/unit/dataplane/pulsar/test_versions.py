"""Which brokers keep buckets apart."""

from __future__ import annotations

import pytest

from controller.dataplane.pulsar.versions import demand_buckets, keeps_buckets_apart
from controller.domain.errors import Unsupported


@pytest.mark.parametrize(
    "version",
    ["3.0.14", "3.0.15", "3.3.9", "4.0.7", "4.0.7-SNAPSHOT", "4.1.0", "4.2.4", "5.0.0-M1", "a fork"],
)
def test_brokers_that_keep_buckets_apart(version: str) -> None:
    assert keeps_buckets_apart(version)
    demand_buckets(version)


@pytest.mark.parametrize("version", ["2.11.4", "3.0.13", "3.1.3", "3.2.4", "3.3.8", "4.0.6", "4.0.0"])
def test_brokers_that_mix_them_are_refused(version: str) -> None:
    with pytest.raises(Unsupported, match="update it to"):
        demand_buckets(version)
