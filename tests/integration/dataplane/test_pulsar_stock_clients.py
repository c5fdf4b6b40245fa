"""The Java and Go producers of `clients/`, and standard pattern consumers, on a real broker with a real worker, while
the topic is reshaped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pulsar
import pytest

from controller.client.history_check import Kind, check
from controller.devstack.serving import serving_worker
from controller.domain.observed_consumers import ObservedConsumer
from tests.integration.dataplane.pulsar_setup import PulsarSetup
from tests.support.bench_planes import PulsarTopic
from tests.support.brokers import SharedBroker
from tests.support.consumer_changes import ConsumerChanges
from tests.support.stock_clients import (
    GO,
    JAVA,
    LANGUAGES,
    PYTHON,
    ROOT,
    Programs,
    StockProcess,
    StockScene,
    breaks,
    unsent,
)
from tests.support.traffic import TrafficProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.pulsar
PAGE = ROOT / "docs/how-to/consume-with-stock-clients.md"
CLEAVE, STOCK = "billing", "audit"
"""Subscriptions: read by Cleave's Python consumers, and by standard consumers."""


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    """The programs on the standard clients, compiled once for this process."""
    return Programs.build(tmp_path_factory.mktemp("stock"))


@pytest.fixture
def scene(setup: PulsarSetup, database: str, programs: Programs, tmp_path: Path) -> Iterator[StockScene]:
    """Standard clients on the topic of the setup, with a worker that runs its operations."""
    with serving_worker(database, consumer_grace_seconds=20.0) as worker:
        scene = StockScene(
            programs, setup.topic, str(setup.access.service_url), worker.address, tmp_path / "histories"
        )
        yield scene
        scene.close()


def subscribe(setup: PulsarSetup, name: str, *options: str) -> None:
    """Create a subscription. `options` such as `--consumers stock` go to the command."""
    setup.cleave.ok("subscriptions", "create", setup.topic, name, *options)


def reshape(setup: PulsarSetup, operations: int) -> None:
    """Split the widest segment and merge the two narrowest neighbours, in turn."""
    for number in range(operations):
        active = setup.layout.active
        if number % 2 == 0:
            widest = max(active, key=lambda one: one.hash_range.width)
            setup.cleave.ok("segments", "split", setup.topic, str(widest.segment_id))
        else:
            left, right = min(
                pairwise(active), key=lambda pair: pair[0].hash_range.width + pair[1].hash_range.width
            )
            setup.cleave.ok("segments", "merge", setup.topic, str(left.segment_id), str(right.segment_id))


def advance(*processes: StockProcess | TrafficProcess, by: int) -> None:
    """Return when each process has so many more messages behind it."""
    targets = [process.count + by for process in processes]
    wait_until(
        lambda: all(one.count >= target for one, target in zip(processes, targets, strict=True)),
        timeout_seconds=90,
        message="traffic flows",
    )


def is_read(setup: PulsarSetup, subscription: str) -> Callable[[], bool]:
    """Return whether the subscription has nothing unread in any log."""
    plane = setup.app.planes["pulsar"]
    return lambda: not any(plane.backlog(log, subscription) for log in plane.list_segments(setup.topic))


def test_their_producers_keep_every_keys_order_across_splits_and_merges(
    setup: PulsarSetup, scene: StockScene, database: str
) -> None:
    """Nothing is lost, and each key comes in order to Cleave's own consumers, who have parts of segments each."""
    setup.create(2, CLEAVE)
    producers = [scene.produce(language, language) for language in LANGUAGES]
    on_pulsar = PulsarTopic(setup.access.admin_urls[0], scene.service_url, setup.topic)
    histories = scene.directory / CLEAVE
    histories.mkdir(parents=True)
    consumers = [
        TrafficProcess(
            *("consume", name),
            url=database,
            topic=setup.topic,
            directory=histories,
            subscription=CLEAVE,
            pulsar=on_pulsar,
            address=scene.address,
        )
        for name in ("c1", "c2")
    ]
    try:
        advance(*producers, *consumers, by=100)
        for _ in range(3):
            reshape(setup, 2)
            advance(*producers, by=200)
        for producer in producers:
            producer.stop()
        wait_until(is_read(setup, CLEAVE), timeout_seconds=60, message="the consumers read to the end")
    finally:
        for consumer in consumers:
            consumer.stop()

    verdict = scene.judge(CLEAVE)

    assert verdict.in_order_and_complete, verdict
    assert verdict.sent > 2 * 700
    assert unsent(scene.records(CLEAVE)) == 0
    assert breaks(scene.records(CLEAVE)) == []


@pytest.mark.parametrize("language", [JAVA, GO])
def test_standard_consumers_without_gates_get_children_before_their_parents(
    setup: PulsarSetup, scene: StockScene, language: str
) -> None:
    """The control run: without it, a run with gates that finds no violation proves nothing."""
    setup.create(1)
    subscribe(setup, STOCK)
    producer = scene.produce(JAVA, "shop", rate=2000)
    advance(producer, by=4000)  # more than a consumer fetches at once
    reshape(setup, 1)
    # A broker may keep a topic fenced that is terminated while messages come; nobody can subscribe until it is loaded again.
    setup.admin("PUT", f"{setup.log_of(0).replace('://', '/')}/unload")
    advance(producer, by=1000)
    producer.stop()
    for name in ("one", "two"):
        scene.consume(language, name, STOCK)
    wait_until(is_read(setup, STOCK), timeout_seconds=60, message="the consumers read to the end")

    verdict = scene.judge(STOCK)

    assert verdict.counts[Kind.LOST] == 0, verdict
    assert verdict.counts[Kind.OVERTAKEN] > 0
    assert breaks(scene.records(STOCK)) != []


@pytest.mark.parametrize("kind", ["Failover", "Exclusive"])
def test_standard_consumers_behind_gates_get_each_key_in_order_although_they_are_killed(
    setup: PulsarSetup, scene: StockScene, pulsar_broker: SharedBroker, kind: str
) -> None:
    """A message comes again only if the consumers of its segment changed. With Exclusive the languages take turns."""
    setup.create(1)
    subscribe(setup, STOCK, "--consumers", "stock")
    changes = ConsumerChanges(setup.topic, STOCK, Path(pulsar_broker.log))
    producers = [scene.produce(language, language, rate=100) for language in LANGUAGES]
    languages = (JAVA, GO, PYTHON)

    def consume(language: str) -> StockProcess:
        return scene.consume(language, f"to-{language}", STOCK, kind=kind, work_ms=2)

    running = {one: consume(one) for one in (languages if kind == "Failover" else (JAVA,))}
    for language, following in zip(languages, (GO, PYTHON, JAVA), strict=True):
        advance(*producers, by=100)
        reshape(setup, 2)
        advance(*producers, by=100)
        running.pop(language).kill()
        if kind == "Failover":
            running[language] = consume(language)
        else:
            wait_until(lambda: not attached(setup), message="the broker misses the consumer")
            running[following] = consume(following)
    for producer in producers:
        producer.stop()
    read_to_the_end = is_read(setup, STOCK)
    wait_until(
        # `count` fails for a consumer that has ended
        lambda: [one.count for one in running.values()] and read_to_the_end(),
        timeout_seconds=90,
        message="the consumers read to the end",
    )

    records = list(scene.records(STOCK))
    verdict = check(records, examples=len(records))
    assert verdict.counts[Kind.LOST] == 0, verdict
    assert breaks(records) == []
    assert changes.unexplained(verdict, records) == []
    assert verdict.sent > 6 * 200


def attached(setup: PulsarSetup) -> list[ObservedConsumer]:
    """Consumers that the broker lists on the topic's logs."""
    plane = setup.app.planes["pulsar"]
    found = plane.consumers(plane.list_segments(setup.topic))
    return [consumer for consumers in found.values() for consumer in consumers]


def test_the_pages_python_consumer_reads_sealed_and_active_segments(setup: PulsarSetup) -> None:
    """The block as it is on the page, but for the broker's address and the namespace."""
    [block] = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    block = block.replace("pulsar://broker.example.org:6650", str(setup.access.service_url))
    setup.create(1, CLEAVE)
    with closing(setup.client()) as client:
        send(client, setup.log_of(0))
        reshape(setup, 1)
        for segment in setup.layout.active:
            send(client, setup.log_of(segment.segment_id))
    seen: list[str] = []
    names = {
        "token": "a.b.c",
        "handle": lambda key, _value: seen.append(key),
        "stopping": lambda: len(seen) == 3,
    }

    exec(block.replace("acme/shop", setup.namespace), names)

    assert sorted(seen) == sorted(setup.log_of(one) for one in setup.layout.segments)


def send(client: pulsar.Client, log: str) -> None:
    """One message whose key is the log's name."""
    producer = client.create_producer(log)
    producer.send(b"", partition_key=log)
    producer.close()
