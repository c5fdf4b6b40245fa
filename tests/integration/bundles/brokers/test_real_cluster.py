"""Two real brokers of Pulsar 4.2.4: what they say of bundles, splits and moves between them, and their refusals."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import requests

from controller.bundles.brokers import ActOutcome, BundleActions, BundleReader, documents
from controller.bundles.domain.ring import NamespaceBundle, NamespaceBundles, topic_hash
from controller.dataplane.pulsar_load.brokers import BrokerList
from controller.domain.errors import BundleNotFound, Conflict
from tests.support.brokers import SharedBroker
from tests.support.waiting import wait_until

TENANT = "bundles"
CALL_SECONDS = 60.0  # a first call on a busy machine


@dataclass
class ServedNamespace:
    """A namespace of four bundles with eight topics, all looked up, so that brokers own and serve them."""

    admin_url: str
    namespace: str
    topics: list[str]
    reader: BundleReader
    acts: BundleActions

    @property
    def bundles(self) -> NamespaceBundles:
        return self.reader.bundles(self.namespace)

    def look_up(self, topic: str) -> None:
        name = topic.partition("://")[2]
        answer = requests.get(f"{self.admin_url}/lookup/v2/topic/persistent/{name}", timeout=CALL_SECONDS)
        answer.raise_for_status()


def _put(url: str, document: object = None) -> None:
    answer = requests.put(url, json=document, timeout=CALL_SECONDS)
    assert answer.status_code in (204, 409), f"{url}: {answer.status_code} {answer.text[:200]}"


@pytest.fixture(scope="module")
def real(pulsar_cluster: SharedBroker) -> Iterator[ServedNamespace]:
    # A tenant of its own: two that make one tenant at once are answered with 500.
    base, tenant = pulsar_cluster.admin_url, f"{TENANT}-{secrets.token_hex(4)}"
    namespace = f"{tenant}/spread"
    [cluster] = [
        name
        for name in requests.get(f"{base}/admin/v2/clusters", timeout=CALL_SECONDS).json()
        if name != "global"
    ]
    _put(f"{base}/admin/v2/tenants/{tenant}", {"allowedClusters": [cluster], "adminRoles": []})
    _put(f"{base}/admin/v2/namespaces/{namespace}", {"bundles": {"numBundles": 4}})
    with requests.Session() as session:
        reader = BundleReader(
            session, BrokerList(session, [base]), cluster=cluster, deadline_seconds=CALL_SECONDS
        )
        acts = BundleActions(session, reader, settle_seconds=CALL_SECONDS)
        topics = [f"persistent://{namespace}/orders-{number}" for number in range(8)]
        found = ServedNamespace(base, namespace, topics, reader, acts)
        for topic in topics:
            _put(f"{base}/admin/v2/persistent/{topic.partition('://')[2]}")
            found.look_up(topic)
        yield found


def test_brokers_report_resources_topics_and_ownership(real: ServedNamespace) -> None:
    brokers = real.reader.brokers()
    assert len(brokers) == 2

    def everything() -> dict[str, tuple[str, documents.TopicReport]] | None:
        told = {one.topic: (broker.name, one) for broker in brokers for one in real.reader.topics(broker)}
        return told if set(real.topics) <= told.keys() else None

    told = wait_until(everything, timeout_seconds=150, message="the brokers have counted their topics once")

    assert told is not None
    for topic in real.topics:
        name, report = told[topic]
        bundle = real.bundles.bundle_of(topic)
        assert (report.namespace, report.bundle) == (real.namespace, bundle.range_text)
        assert real.reader.owner(bundle) == name
        assert real.reader.topic_hashes(bundle)[topic] == topic_hash(topic)
    for broker in brokers:
        system = real.reader.system(broker)
        assert (system.source, system.version) == ("load-report", "4.2.4")
        assert system.resources.cpu.limit > 0


def test_the_metrics_page_tells_the_same_without_a_load_report(real: ServedNamespace) -> None:
    [broker, _] = real.reader.brokers()

    def page() -> documents.SystemReport | None:
        lines = real.reader._system_lines(f"{broker.url}/metrics/")
        return documents.metrics_report(lines) if b"pulsar_lb_cpu_usage" in lines else None

    report = wait_until(page, timeout_seconds=120, message="the broker has counted its load once")

    assert report is not None
    assert report.version == "4.2.4"
    assert report.resources.cpu.limit == 100.0
    assert report.resources.memory.usage > 0


def test_a_split_at_several_places_is_seen(real: ServedNamespace) -> None:
    bundle = real.bundles.bundle_of(real.topics[0])
    cuts = [bundle.lower + 10, bundle.lower + 20]

    result = real.acts.split_at(bundle, cuts)

    assert result.outcome is ActOutcome.DONE
    assert [child.lower for child in result.children] == [bundle.lower, *cuts]
    assert real.acts.split_at(bundle, cuts).outcome is ActOutcome.DONE_ALREADY
    with pytest.raises(BundleNotFound, match="another client split it"):
        real.acts.split_at(bundle, [bundle.lower + 15])


def test_what_a_broker_refuses(real: ServedNamespace) -> None:
    bundle = real.bundles.bundle_of(real.topics[2])

    with pytest.raises(Conflict, match="inactive destination"):
        real.acts.unload(bundle, destination="127.0.0.1:9")
    with pytest.raises(BundleNotFound):
        real.acts.unload(NamespaceBundle(real.namespace, 1, 2))


def test_a_bundle_moves_to_the_broker_it_is_sent_to(real: ServedNamespace) -> None:
    topic = real.topics[3]
    real.look_up(topic)
    bundle = real.bundles.bundle_of(topic)
    source = real.reader.owner(bundle)
    [destination] = [broker.name for broker in real.reader.brokers() if broker.name != source]

    result = real.acts.unload(bundle, destination=destination, source=source)
    real.look_up(topic)

    assert result.outcome is ActOutcome.DONE
    assert result.owner in (None, destination)
    assert real.reader.owner(bundle) == destination
    assert real.acts.unload(bundle, destination=destination).outcome is ActOutcome.DONE_ALREADY
