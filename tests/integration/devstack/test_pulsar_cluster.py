"""Two brokers over one bookie, started for real: one dies, the other serves on, the first returns."""

from __future__ import annotations

from pathlib import Path

import pulsar
import pytest
import requests

from controller.devstack.failure import DevstackFailed
from controller.devstack.pulsar.cluster import CLUSTER_NAME, LoadManager, PulsarCluster
from controller.devstack.pulsar.jars import PULSAR_4
from controller.devstack.pulsar.java_server import QUICK
from tests.support.brokers import demand_jars, pulsar_client
from tests.support.waiting import wait_until

pytestmark = pytest.mark.pulsar
TOPIC = "persistent://public/default/devstack"


@pytest.fixture(autouse=True)
def jars() -> Path:
    return demand_jars(PULSAR_4)


@pytest.mark.chaos  # a broker of its own, started and killed
def test_a_broker_dies_and_the_other_has_its_messages_until_it_returns(tmp_path: Path) -> None:
    cluster = PulsarCluster(tmp_path, load_manager=LoadManager.EXTENSIBLE, jvm=QUICK)
    first, second = cluster.brokers
    try:
        cluster.start()
        assert brokers_listed(cluster) == {first.broker_id, second.broker_id}
        assert requests.get(f"{load_report(cluster)}", timeout=30).status_code == 500  # it has none

        with pulsar_client(cluster.service_url) as client:
            client.create_producer(TOPIC).send(b"written before the crash")
        owner = requests.get(f"{first.admin_url}/lookup/v2/topic/{TOPIC.replace('://', '/')}", timeout=30)
        victim, survivor = (first, second) if owner.json()["httpUrl"] == first.admin_url else (second, first)

        victim.kill()
        assert survivor.running
        # The dead broker owns its topics until its session is over, half a minute.
        with pulsar_client(survivor.service_url, timeout_seconds=180) as client:
            message = client.create_reader(TOPIC, pulsar.MessageId.earliest).read_next(60_000)
            assert message.data() == b"written before the crash"

        victim.start()
        wait_until(
            lambda: brokers_listed(cluster) == {first.broker_id, second.broker_id}, timeout_seconds=120
        )
    finally:
        cluster.destroy()


def test_a_cluster_of_no_brokers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DevstackFailed, match="give at least 1"):
        PulsarCluster(tmp_path, brokers=0)


def brokers_listed(cluster: PulsarCluster) -> set[str]:
    for broker in cluster.brokers:
        if broker.running:
            return set(requests.get(f"{broker.admin_url}/admin/v2/brokers/{CLUSTER_NAME}", timeout=30).json())
    return set()


def load_report(cluster: PulsarCluster) -> str:
    return f"{cluster.admin_url}/admin/v2/broker-stats/load-report"
