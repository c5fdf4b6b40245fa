"""The readers on a real broker of Pulsar 4.2.4: what is sent, read and attached is what they say."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping

import pulsar
import pytest
import requests

from controller.dataplane.base import Counters
from controller.dataplane.pulsar_load.brokers import BrokerList
from controller.dataplane.pulsar_load.consumers import ConsumerReader
from controller.dataplane.pulsar_load.scraper import CounterScraper
from controller.domain.counter_rates import CounterSample, NoRate, judge_counters
from controller.domain.observed_consumers import subscription_uses
from tests.support.brokers import SharedBroker
from tests.support.waiting import wait_until

PAYLOAD = b"x" * 100


def scraper_of(broker: SharedBroker) -> CounterScraper:
    """Reads the pages of this cluster."""
    session = requests.Session()
    return CounterScraper(session, BrokerList(session, [broker.admin_url]), deadline_seconds=30.0)


def reader_of(broker: SharedBroker) -> ConsumerReader:
    """Reads the consumers of this cluster."""
    session = requests.Session()
    return ConsumerReader(session, BrokerList(session, [broker.admin_url]), deadline_seconds=5.0)


@pytest.fixture
def scraper(pulsar_broker: SharedBroker) -> Iterator[CounterScraper]:
    """Of the shared broker, whatever it is busy with."""
    scraper = scraper_of(pulsar_broker)
    yield scraper
    scraper.close()


@pytest.fixture
def consumers(pulsar_broker: SharedBroker) -> Iterator[ConsumerReader]:
    """Of the shared broker."""
    consumers = reader_of(pulsar_broker)
    yield consumers
    consumers.close()


@pytest.fixture
def client(pulsar_broker: SharedBroker) -> Iterator[pulsar.Client]:
    """One process as an application has it."""
    client = connect(pulsar_broker)
    yield client
    client.close()


def connect(broker: SharedBroker) -> pulsar.Client:
    """A connection of its own."""
    return pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))


def topic(part: str = "0000-ffff-0") -> str:
    """One nobody used before, as the data plane would name it."""
    return f"persistent://public/default/load-{secrets.token_hex(4)}-segment-{part}"


def test_a_log_that_its_broker_loads_anew_goes_back_and_nothing_says_why(
    pulsar_broker: SharedBroker, scraper: CounterScraper, client: pulsar.Client
) -> None:
    """So the smaller number alone is no restart: the broker's name with its start is the same, and so is the topic's creation."""
    name = topic()
    producer = client.create_producer(name)
    for _ in range(50):
        producer.send(PAYLOAD)
    [before] = sampled(scraper, [name], lambda found: name in found and found[name].msg_in == 50).values()
    rest = f"{pulsar_broker.admin_url}/admin/v2/{name.replace('://', '/')}"
    created = requests.get(f"{rest}/stats", timeout=30).json()["topicCreationTimeStamp"]

    assert requests.put(f"{rest}/unload", timeout=30).status_code == 204
    for _ in range(20):
        producer.send(PAYLOAD)

    [after] = sampled(scraper, [name], lambda found: name in found and found[name].msg_in == 20).values()
    assert after.source == before.source
    assert requests.get(f"{rest}/stats", timeout=30).json()["topicCreationTimeStamp"] == created
    samples = [
        CounterSample(one.source, one.instant_ms, one.msg_in, one.byte_in, one.msg_out, one.byte_out)
        for one in (before, after)
    ]
    assert judge_counters(samples, after.instant_ms) == NoRate(after.source)


def read(consumer: pulsar.Consumer, count: int) -> None:
    """Receive and acknowledge."""
    for _ in range(count):
        consumer.acknowledge(consumer.receive(timeout_millis=20_000))


def sampled(
    scraper: CounterScraper, names: list[str], agrees: Callable[[Mapping[str, Counters]], bool]
) -> Mapping[str, Counters]:
    """The first sample that agrees. One may be older than the call: what asks while a broker makes its page for another is given
    that one.
    """
    samples: list[Mapping[str, Counters]] = []

    def one_that_agrees() -> bool:
        samples.append(scraper.sample(names))
        return agrees(samples[-1])

    wait_until(one_that_agrees, message="the counters are as expected")
    return samples[-1]


def test_counters_are_of_messages_and_bytes_over_all_subscriptions(
    client: pulsar.Client, scraper: CounterScraper, pulsar_broker: SharedBroker
) -> None:
    name, missing = topic(), topic()
    readers = [client.subscribe(name, f"s{n}") for n in range(2)]
    producer = client.create_producer(name, batching_enabled=False)
    for _ in range(7):
        producer.send(PAYLOAD)
    for reader in readers:
        read(reader, 7)

    found = sampled(scraper, [name, missing], lambda found: name in found and found[name].msg_out == 14)
    assert set(found) == {name}
    counters = found[name]
    assert (counters.msg_in, counters.msg_out, counters.byte_out) == (7, 14, 2 * counters.byte_in)
    assert counters.byte_in >= 700
    assert counters.source.startswith(next(iter(pulsar_broker.brokers)) + "@20")

    readers[0].unsubscribe()
    later = sampled(scraper, [name], lambda found: found[name].source != counters.source)[name]
    assert (later.msg_out, later.byte_out) == (counters.msg_out, counters.byte_out)
    assert later.source == f"{counters.source}~{later.instant_ms}"


def test_a_log_loaded_anew_counts_from_zero(
    client: pulsar.Client, scraper: CounterScraper, pulsar_broker: SharedBroker
) -> None:
    name = topic()
    producer = client.create_producer(name, batching_enabled=False)
    for _ in range(3):
        producer.send(PAYLOAD)
    sampled(scraper, [name], lambda found: name in found and found[name].msg_in == 3)
    producer.close()

    path = name.replace("://", "/")
    requests.put(f"{pulsar_broker.admin_url}/admin/v2/{path}/unload", timeout=20).raise_for_status()
    client.create_producer(name).send(PAYLOAD)

    sampled(scraper, [name], lambda found: name in found and found[name].msg_in == 1)


def test_names_with_signs_of_the_text_format_are_found(
    client: pulsar.Client, scraper: CounterScraper
) -> None:
    names = [f"{topic()}{sign}x" for sign in ('"', "\\", ",", "{", "}", '"} 1 ', "ü")]
    for name in names:
        client.create_producer(name).send(PAYLOAD)

    found = sampled(scraper, names, lambda found: set(found) == set(names))
    assert {one.msg_in for one in found.values()} == {1}


def test_consumers_are_seen_with_their_types_and_names(
    client: pulsar.Client, consumers: ConsumerReader
) -> None:
    low, high = topic("0000-7fff-1"), topic("8000-ffff-2")
    kinds = {
        "exclusive": pulsar.ConsumerType.Exclusive,
        "failover": pulsar.ConsumerType.Failover,
        "key-shared": pulsar.ConsumerType.KeyShared,
        "shared": pulsar.ConsumerType.Shared,
    }
    attached = [
        client.subscribe(log, name, consumer_type=kind, consumer_name=f"pod-{name}")
        for name, kind in kinds.items()
        for log in (low, high)
    ]
    reader = client.create_reader(low, pulsar.MessageId.earliest)

    uses = subscription_uses(consumers.consumers([low, high]))
    assert {name: (use.subscription_type, use.consumers, use.names) for name, use in uses.items()} == {
        "exclusive": ("Exclusive", 1, ("pod-exclusive",)),
        "failover": ("Failover", 1, ("pod-failover",)),
        "key-shared": ("Key_Shared", 1, ("pod-key-shared",)),
        "shared": ("Shared", 1, ("pod-shared",)),
    }
    reader.close()
    for consumer in attached:
        consumer.close()
    wait_until(lambda: consumers.consumers([low, high]) == {low: [], high: []}, message="nobody is attached")


@pytest.mark.parametrize(
    "together", [True, False], ids=["as one consumer of two topics", "as a consumer each"]
)
def test_unnamed_processes_that_read_every_segment_count_once_each(
    pulsar_broker: SharedBroker, consumers: ConsumerReader, together: bool
) -> None:
    logs = [topic("0000-7fff-1"), topic("8000-ffff-2")]
    processes = [connect(pulsar_broker) for _ in range(2)]
    for process in processes:
        for names in [logs] if together else [[log] for log in logs]:
            process.subscribe(
                names if together else names[0], "app", consumer_type=pulsar.ConsumerType.Failover
            )

    assert subscription_uses(consumers.consumers(logs))["app"].consumers == 2
    for process in processes:
        process.close()


def test_topics_of_pulsar_5_are_found_by_their_segments(pulsar5_broker: SharedBroker) -> None:
    name = f"load-{secrets.token_hex(4)}"
    url = f"{pulsar5_broker.admin_url}/admin/v2/scalable/public/default/{name}"
    requests.put(url, params={"numInitialSegments": "2"}, json={}, timeout=20).raise_for_status()
    segments = [f"segment://public/default/{name}/{part}" for part in ("0000-7fff-0", "8000-ffff-1")]
    scraper = scraper_of(pulsar5_broker)

    found = sampled(scraper, segments, lambda found: set(found) == set(segments))
    assert {one: (counters.msg_in, counters.byte_out) for one, counters in found.items()} == dict.fromkeys(
        segments, (0, 0)
    )
    scraper.close()


def test_a_cluster_is_read_whole_and_a_topic_is_followed_to_its_new_owner(
    pulsar_cluster: SharedBroker,
) -> None:
    client, name = connect(pulsar_cluster), topic()
    consumer = client.subscribe(
        name, "app", consumer_type=pulsar.ConsumerType.Failover, consumer_name="pod-1"
    )
    producer = client.create_producer(name, batching_enabled=False)
    producer.send(PAYLOAD)
    read(consumer, 1)
    scraper, consumers = scraper_of(pulsar_cluster), reader_of(pulsar_cluster)
    before = sampled(scraper, [name], lambda found: name in found)[name]
    owner = before.source.partition("@")[0]
    [there] = [one for one in pulsar_cluster.brokers if one != owner]
    assert [one.broker for one in consumers.consumers([name])[name]] == [f"http://{owner}"]

    path = name.partition("://")[2]
    bundle = requests.get(
        f"{pulsar_cluster.admin_url}/lookup/v2/topic/persistent/{path}/bundle", timeout=20
    ).text
    requests.put(
        f"{pulsar_cluster.admin_url}/admin/v2/namespaces/public/default/{bundle}/unload",
        params={"destinationBroker": there},
        timeout=30,
    ).raise_for_status()
    producer.send(PAYLOAD)
    read(consumer, 1)

    sampled(
        scraper,
        [name],
        lambda found: (
            name in found and found[name].source.startswith(f"{there}@") and found[name].msg_in == 1
        ),
    )
    assert [(one.name, one.broker) for one in consumers.consumers([name])[name]] == [
        ("pod-1", f"http://{there}")
    ]
    client.close()
    scraper.close()
    consumers.close()
