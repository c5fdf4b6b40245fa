"""Reading brokers over real HTTP: reports of both load managers, owners, and what counts as silence."""

from __future__ import annotations

import pytest

from controller.bundles.brokers import documents
from controller.bundles.domain.load import ResourceUsage
from controller.bundles.domain.ring import NamespaceBundle, topic_hash
from controller.dataplane.pulsar_load import brokers
from controller.dataplane.pulsar_load.http import origin
from controller.domain.errors import BundleNotFound, CleaveError, DataPlaneUnavailable, NotFound, Terminal
from tests.support.bundle_brokers import Bench
from tests.support.staged_brokers import StagedBroker

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


@pytest.mark.parametrize(
    ("status", "kind", "said"),
    [
        (401, Terminal, "/metrics/ with 401; check that the token is valid"),
        (403, Terminal, "/metrics/ with 403; check that the token is valid"),
        (404, Terminal, "/metrics/ with 404"),
        (503, DataPlaneUnavailable, "/metrics/ with 503"),
    ],
)
def test_a_metrics_page_that_is_refused_is_an_error_like_any_other_refusal(
    bench: Bench, status: int, kind: type[CleaveError], said: str
) -> None:
    bench.cluster.is_extensible, bench.cluster.page_status = True, status

    with pytest.raises(kind, match=said):
        bench.reader.system(bench.reader.brokers()[0])


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


def test_another_address_is_asked_when_the_first_is_dead(bench: Bench) -> None:
    bundles = bench.cluster.add(NAMESPACE, HALF)
    alive = f"http://{bench.cluster.brokers[0]}/"

    assert Bench(bench.cluster, 5.0, ["http://127.0.0.1:1", alive]).reader.bundles(NAMESPACE) == bundles


def test_an_address_that_dies_is_left_by_the_next_read(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brokers, "MIN_REFRESH_SECONDS", 0.0)
    bundles = bench.cluster.add(NAMESPACE, HALF)
    with StagedBroker() as dying:
        dying.cluster = bench.cluster.brokers
        reader = Bench(bench.cluster, 5.0, [dying.url, f"http://{bench.cluster.brokers[0]}"]).reader
        assert origin(dying.url) in reader.trusted()

    with pytest.raises(DataPlaneUnavailable):
        reader.bundles(NAMESPACE)
    assert reader.bundles(NAMESPACE) == bundles
    assert reader.trusted() == {f"http://{name}" for name in bench.cluster.brokers}


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


NO_NUMBER = ("null", '"NaN"', "NaN", "-Infinity", '"Infinity"', '"x"', "1e300", "[]", "{}")


@pytest.mark.parametrize("written", NO_NUMBER)
@pytest.mark.parametrize("name", ["cpu", "memory", "directMemory", "bandwidthIn", "bandwidthOut"])
def test_a_figure_of_a_load_report_that_is_no_number_is_unknown_alone(name: str, written: str) -> None:
    names = ["cpu", "memory", "directMemory", "bandwidthIn", "bandwidthOut"]
    usages = {one: f'{{"usage": {written if one == name else 10.0}, "limit": 100.0}}' for one in names}
    body = ", ".join(f'"{one}": {usage}' for one, usage in usages.items())

    resources = documents.load_report(
        f'{{{body}, "brokerVersionString": null, "lastStats": {{"b": {{"cacheSize": {written}}}}}}}'.encode()
    ).resources

    found = [
        resources.cpu,
        resources.memory,
        resources.direct_memory,
        resources.bandwidth_in,
        resources.bandwidth_out,
    ]
    assert found == [ResourceUsage() if one == name else ResourceUsage(10.0, 100.0) for one in names]


@pytest.mark.parametrize(
    "cpu", ["null", "{}", '{"usage": -1.0, "limit": 800.0}', '{"usage": 5, "limit": "NaN"}']
)
def test_a_processor_that_a_load_report_leaves_out_is_unknown(cpu: str) -> None:
    rest = ", ".join(f'"{one}": null' for one in ("memory", "directMemory", "bandwidthIn", "bandwidthOut"))
    assert documents.load_report(f'{{"cpu": {cpu}, {rest}}}'.encode()).resources.cpu == ResourceUsage()


@pytest.mark.parametrize("written", [*NO_NUMBER, "-1"])
@pytest.mark.parametrize("name", ["msgRateIn", "msgThroughputOut", "producerCount"])
def test_a_figure_of_a_topic_that_is_no_number_is_unknown_alone(name: str, written: str) -> None:
    figures = {
        "msgRateIn": 2.0,
        "msgRateOut": 3.0,
        "msgThroughputIn": 20.0,
        "msgThroughputOut": 30.0,
        "producerCount": 4,
    }
    written_as = ", ".join(f'"{one}": {written if one == name else value}' for one, value in figures.items())
    body = f'{{"{NAMESPACE}": {{"0x00000000_0xffffffff": {{"persistent": {{"t": {{{written_as}, "subscriptions": null}}, "u": {{"msgRateIn": 1}}}}}}}}}}'

    [topic, other] = documents.topics(body.encode())

    stats, expected = topic.stats, {**figures, name: 0}
    assert (stats.msg_rate_in, stats.byte_rate_out, stats.producer_count) == (
        expected["msgRateIn"], expected["msgThroughputOut"], expected["producerCount"],
    )  # fmt: skip
    assert (stats.msg_rate_out, stats.byte_rate_in, other.stats.msg_rate_in) == (3.0, 20.0, 1.0)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "x", "1e300"])
def test_a_figure_of_a_metrics_page_that_is_no_number_is_unknown_alone(value: str) -> None:
    page = f'pulsar_lb_cpu_usage{{cluster="c"}} {value}\npulsar_lb_memory_usage{{cluster="c"}} 5.0\n'
    resources = documents.metrics_report(page.encode()).resources
    assert (resources.cpu, resources.memory) == (ResourceUsage(), ResourceUsage(5.0, 100.0))


def test_a_version_that_is_no_utf_8_does_not_hide_the_usage() -> None:
    page = b'pulsar_version_info{version="4.\xff"} 1.0\npulsar_lb_cpu_usage{cluster="c"} 5.0\n'
    report = documents.metrics_report(page)
    assert (report.version, report.resources.cpu) == ("4.\ufffd", ResourceUsage(5.0, 100.0))


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
