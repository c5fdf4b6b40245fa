"""Reading brokers over real HTTP: reports of both load managers, owners, and what counts as silence."""

from __future__ import annotations

import pytest

from controller.bundles.brokers import documents
from controller.bundles.domain.load.resources import ResourceUsage
from controller.bundles.domain.ring.bundle import NamespaceBundle
from controller.bundles.domain.ring.hashes import topic_hash
from controller.domain.errors import BundleNotFound, DataPlaneUnavailable, NotFound
from tests.support.bundle_brokers import Bench

HALF = 0x80000000
NAMESPACE = "acme/shop"
LOWER = NamespaceBundle(NAMESPACE, 0, HALF)
TOPIC = "persistent://acme/shop/orders-partition-0"


def test_a_load_report_gives_resources_version_and_caches(bench: Bench) -> None:
    bench.cluster.add(NAMESPACE, HALF)

    report = bench.reader.system(bench.reader.brokers()[0])

    assert (report.source, report.version) == ("load-report", "4.2.4")
    assert report.resources.direct_memory == ResourceUsage(50.0, 100.0)
    assert report.cache_size_bytes == {str(LOWER): 7}


def test_where_there_is_no_load_report_the_metrics_page_tells(bench: Bench) -> None:
    bench.cluster.is_extensible = True

    report = bench.reader.system(bench.reader.brokers()[0])

    assert (report.source, report.version) == ("metrics", "4.2.4")
    assert report.resources.cpu == ResourceUsage(99.5, 100.0)
    assert report.resources.memory == ResourceUsage(20.0, 100.0)
    assert report.resources.bandwidth_out == ResourceUsage()  # NaN is unknown


def test_topics_are_told_by_their_owner_with_rates_and_sessions(bench: Bench) -> None:
    bench.cluster.add(NAMESPACE)
    bench.cluster.publish(TOPIC, 2.5)
    first, second = bench.reader.brokers()

    [topic] = bench.reader.topics(first)

    assert (topic.namespace, topic.bundle, topic.topic) == (NAMESPACE, "0x00000000_0xffffffff", TOPIC)
    assert (topic.stats.msg_rate, topic.stats.byte_rate) == (5.0, 500.0)
    assert (topic.stats.topic_count, topic.stats.producer_count, topic.stats.consumer_count) == (1, 1, 2)
    assert list(bench.reader.topics(second)) == []


def test_owner_boundaries_and_hashes(bench: Bench) -> None:
    bundles = bench.cluster.add(NAMESPACE, HALF)
    bench.cluster.publish(TOPIC)
    first, second = bench.cluster.brokers

    assert bench.reader.bundles(NAMESPACE) == bundles
    assert [bench.reader.owner(bundle) for bundle in bundles.bundles] == [first, second]
    assert bench.reader.topic_hashes(bundles.bundle_of(TOPIC)) == {TOPIC: topic_hash(TOPIC)}
    bench.cluster.owners.pop(LOWER)
    assert bench.reader.owner(LOWER) is None


def test_hashes_of_a_bundle_that_is_no_more(bench: Bench) -> None:
    bench.cluster.add(NAMESPACE, 5)

    with pytest.raises(BundleNotFound, match="read the bundles again"):
        bench.reader.topic_hashes(LOWER)
    with pytest.raises(NotFound, match="no namespace acme/none"):
        bench.reader.bundles("acme/none")


def test_nobody_is_called_ownerless_while_a_broker_is_silent(bench: Bench) -> None:
    bench.cluster.add(NAMESPACE, HALF)
    first, second = bench.cluster.brokers
    bench.reader.brokers()
    bench.cluster.silent = {second}

    assert bench.reader.owner(LOWER, first=[first]) == first
    with pytest.raises(DataPlaneUnavailable, match=f"{second} did not answer"):
        bench.reader.owner(NamespaceBundle(NAMESPACE, HALF, 0xFFFFFFFF))


@pytest.mark.parametrize(
    "read",
    [
        documents.load_report,
        documents.boundaries,
        documents.owned_bundles,
        lambda body: list(documents.topics(body)),
    ],
)
@pytest.mark.parametrize(
    "body", [b"", b"<html>", b'{"cpu": "hot"}', b'{"boundaries": ["x"]}', b"[1]", b"\xff"]
)
def test_what_is_no_such_document_is_silence(read: object, body: bytes) -> None:
    if read is documents.owned_bundles and body == b'{"cpu": "hot"}':
        body = b'{"a": 1}'
    assert callable(read)
    with pytest.raises(DataPlaneUnavailable):
        read(body)
