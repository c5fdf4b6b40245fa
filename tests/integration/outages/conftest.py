"""A replicated PostgreSQL for the scenes of a module, and the topics that a scene has on each data plane."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.bench_planes import PulsarTopic
from tests.support.brokers import SharedBroker
from tests.support.outage_scene import prepare
from tests.support.replicated_postgres import ReplicatedPostgres
from tests.support.scratch import scratch


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicatedPostgres]:
    """A primary without a standby: each scene adds the one it needs."""
    with ReplicatedPostgres(scratch(tmp_path_factory, "replicated")) as cluster:
        prepare(cluster)
        yield cluster


@pytest.fixture
def topics(request: pytest.FixtureRequest) -> list[PulsarTopic | None]:
    """One on the embedded logs, and one on the run's broker where this machine can start a broker."""
    try:
        broker: SharedBroker = request.getfixturevalue("pulsar_broker")
    except pytest.skip.Exception:
        return [None]
    return [None, PulsarTopic.fresh(broker.admin_url, broker.service_url, "outages")]
