"""Measures ordered consumption by entry buckets on an unmodified Pulsar 4.2.4, and the stock client on the same broker.

`entries`: 50,000 messages of 20,000 keys into 16 buckets of one log: the number of entries, and the messages that three consumers find
misplaced or out of order; for comparison the stock client's key-based batching. `join`: a second consumer joins a topic of one segment at
2,000 messages per second, as in `bench_sessions`; `join_on_pulsar_5`: the same on a Pulsar 5.0.0-M1 with its own controller and its Java
client. `throughput`: one producer and four consumers, each a process: Cleave's in the four buckets of one segment, the stock client's on
a topic of four partitions with a consumer each, with its own default batching. Both acknowledge everything and touch key and payload of
each message. A first round, of a broker that has just started, is not counted. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from multiprocessing.process import BaseProcess
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path

import pulsar
import requests

from benchmarks.bench_sessions import RATE, joins, make_topic
from benchmarks.machine import machine
from benchmarks.pulsar_5_join import joins_on_pulsar_5
from controller.bootstrap import Application, application
from controller.client.http_source import HttpSource
from controller.client.producer import Producer
from controller.client.servers import Servers
from controller.client.stream_consumer import StreamConsumer
from controller.dataplane.pulsar.cluster_access import PulsarAccess
from controller.dataplane.pulsar.log_client import PulsarLogClient
from controller.demo.planes import NAMESPACE, make_namespace
from controller.devstack.ports import free_port
from controller.devstack.postgres import DURABLE, EmbeddedPostgres
from controller.devstack.process import ChildProcess
from controller.devstack.pulsar.standalone import PulsarStandalone
from controller.devstack.serving import SECRET, client_of, token_for
from controller.domain.key_hash import key_hash
from controller.settings import PROJECT_ROOT, Settings
from controller.store.postgres.migrations import migrate
from controller.store.topics import policies
from controller.store.topics.published_layout import published_layout

MESSAGES, KEYS, BUCKETS = 50_000, 20_000, 16
THROUGHPUT_MESSAGES = 1_000_000
CONSUMERS = 4
PAYLOAD = b"x" * 100


@dataclass(frozen=True)
class Place:
    """Addresses and token of the servers; it is passed to other processes."""

    admin_url: str
    service_url: str
    address: str
    token: str

    @property
    def access(self) -> PulsarAccess:
        return PulsarAccess(admin_url=self.admin_url, service_url=self.service_url)

    @contextmanager
    def clients(self) -> Iterator[tuple[Servers, PulsarLogClient]]:
        """Open the clients of an application: workers and logs."""
        with (
            closing(Servers([self.address], self.token, call_timeout_seconds=10.0)) as servers,
            closing(PulsarLogClient(self.access)) as logs,
        ):
            yield servers, logs


@contextmanager
def ground(directory: Path) -> Iterator[tuple[Place, Application]]:
    """Start a broker, a database and a serving worker, each as a process, and yield their addresses and an application. All are stopped
    at the end.
    """
    with ExitStack() as running:
        broker = running.enter_context(PulsarStandalone(directory / "pulsar"))
        server = EmbeddedPostgres(directory / "postgres", settings=DURABLE)
        running.callback(server.destroy)
        server.start()
        url, port = server.create_database("bench"), free_port()
        migrate(url)
        place = Place(broker.admin_url, broker.service_url, f"http://127.0.0.1:{port}", token_for())
        make_namespace(place.access)
        settings = Settings(
            database_url=url,
            pulsar_admin_url=place.admin_url,
            pulsar_service_url=place.service_url,
            call_timeout_seconds=20.0,
        )
        app = running.enter_context(application(settings))
        env = {
            **os.environ,
            "CLEAVE_DATABASE_URL": url,
            "CLEAVE_API_SECRET": SECRET,
            "CLEAVE_SERVE_PORT": str(port),
            "CLEAVE_PULSAR_ADMIN_URL": place.admin_url,
            "CLEAVE_PULSAR_SERVICE_URL": place.service_url,
        }
        command = [sys.executable, "-m", "controller.commands.cli", "worker", "--no-collect", "--name", "w"]
        worker = ChildProcess(command, log=directory / "worker.log", cwd=PROJECT_ROOT, env=env)
        running.callback(worker.stop)
        worker.start()
        yield place, app


def set_buckets(app: Application, budget: int) -> None:
    """Set the bucket budget in the policy of the cluster, and disable the auto-scaler, so that only this benchmark reshapes topics."""
    with app.store.transaction() as tx:
        policy = replace(policies.get_cluster(tx), enabled=False, entry_bucket_budget=budget)
        policies.set_cluster(tx, policy, actor="benchmark")


def stored_entries(place: Place, log: str) -> int:
    """Return the number of entries that were stored in a log."""
    path = log.replace("://", "/")
    answer = requests.get(f"{place.admin_url}/admin/v2/{path}/internalStats", timeout=30)
    answer.raise_for_status()
    return int(answer.json()["entriesAddedCounter"])


def make_plain(place: Place, topic: str, partitions: int = 0) -> None:
    """Create a topic that is not managed by Cleave, with `partitions` partitions."""
    path = f"{place.admin_url}/admin/v2/{topic.replace('://', '/')}"
    answer = (
        requests.put(f"{path}/partitions", json=partitions, timeout=30)
        if partitions
        else requests.put(path, timeout=30)
    )
    answer.raise_for_status()


def log_of(app: Application, topic: str) -> str:
    """Return the log of a topic's only segment."""
    with app.store.transaction() as tx:
        [log] = published_layout(tx, topic).backing_topics.values()
    return log


class Auditor(threading.Thread):
    """A consumer thread that reads until no further messages come. It adds (key, number) of each message to `received`, and counts
    misplaced ones.
    """

    def __init__(self, place: Place, topic: str, name: str, received: list[tuple[str, int]]) -> None:
        super().__init__(name=name)
        self._place, self._topic, self._found = place, topic, received
        self.misplaced = 0

    def run(self) -> None:
        with (
            self._place.clients() as (servers, logs),
            StreamConsumer(servers, logs, self._topic, "s", self.name, batch_messages=1_000) as consumer,
        ):
            while len(self._found) < MESSAGES:
                batch = consumer.receive(0.5)
                if batch is None:
                    continue
                for message in batch.messages:
                    assert message.key is not None
                    self.misplaced += not batch.bucket.contains(key_hash(message.key).bucket_hash)
                    self._found.append((message.key.decode(), int(message.payload[:8])))
                consumer.acknowledge(batch)


def entries(place: Place, app: Application) -> dict[str, object]:
    """Send the same messages through Cleave's buckets and the stock client's key-based batches. Return the numbers of entries, and of
    lost, misplaced and unordered messages.
    """
    set_buckets(app, BUCKETS)
    topic = f"topic://{NAMESPACE}/entries"
    make_topic(app, topic, "pulsar")
    keys = [f"key-{number}" for number in range(KEYS)]
    with place.clients() as (servers, logs):
        producer = Producer(HttpSource(servers), logs, topic, batch_messages=1_000)
        for number in range(MESSAGES):
            producer.send(b"%08d" % number + PAYLOAD, keys[number * 7919 % KEYS])
        producer.flush()
        producer.close()
    received: list[tuple[str, int]] = []
    auditors = [Auditor(place, topic, f"c{number}", received) for number in range(3)]
    for auditor in auditors:
        auditor.start()
    for auditor in auditors:
        auditor.join()
    last: dict[str, int] = {}
    out_of_order = 0
    for key, number in received:
        out_of_order += number < last.get(key, -1)
        last[key] = number
    plain = f"persistent://{NAMESPACE}/key-based"
    make_plain(place, plain)
    with closing(stock_client(place)) as client:
        stock = client.create_producer(
            plain,
            batching_enabled=True,
            batching_type=pulsar.BatchingType.KeyBased,
            batching_max_messages=1_000,
            batching_max_publish_delay_ms=100,
            block_if_queue_full=True,
        )
        for number in range(MESSAGES):
            stock.send_async(b"%08d" % number + PAYLOAD, None, partition_key=keys[number * 7919 % KEYS])
        stock.flush()
    return {
        "messages": MESSAGES,
        "keys": KEYS,
        "buckets": BUCKETS,
        "entries": stored_entries(place, log_of(app, topic)),
        "goal_entries": 1_000,
        "entries_of_key_based_batching": stored_entries(place, plain),
        "found": len(received),
        "lost": len(set(range(MESSAGES)) - {number for _, number in received}),
        "misplaced": sum(auditor.misplaced for auditor in auditors),
        "out_of_order": out_of_order,
    }


def send_ours(place: Place, topic: str, started: Synchronized[float]) -> None:
    """Send all messages with Cleave's client, and store the time of the first send in `started`. Runs as a process."""
    with place.clients() as (servers, logs):
        producer = Producer(HttpSource(servers), logs, topic, batch_messages=1_000)
        keys = [f"key-{number}" for number in range(1_000)]
        started.value = time.monotonic()
        for number in range(THROUGHPUT_MESSAGES):
            producer.send(PAYLOAD, keys[number % len(keys)])
        producer.flush()
        producer.close()


def read_ours(
    place: Place, topic: str, name: str, remaining: Synchronized[int], ready: Synchronized[int]
) -> None:
    """Read with Cleave's client until no message remains; subtract acknowledged messages from `remaining`. Runs as a process.

    Adds 1 to `ready` when the consumer owns a bucket.
    """
    with (
        place.clients() as (servers, logs),
        StreamConsumer(servers, logs, topic, "s", name, batch_messages=1_000) as consumer,
    ):
        while not consumer.buckets:
            consumer.receive(0.05)
        _count(ready, 1)
        while remaining.value > 0:
            batch = consumer.receive(0.2)
            if batch is None:
                continue
            _touch((message.key, message.payload) for message in batch.messages)
            if consumer.acknowledge(batch):
                _count(remaining, -len(batch.messages))


def send_stock(place: Place, topic: str, started: Synchronized[float]) -> None:
    """Send all messages with the stock client: its own batching, keys routed to partitions. Runs as a process."""
    with closing(stock_client(place)) as client:
        producer = client.create_producer(
            topic, batching_enabled=True, batching_max_messages=1_000, block_if_queue_full=True
        )
        keys = [f"key-{number}" for number in range(1_000)]
        started.value = time.monotonic()
        for number in range(THROUGHPUT_MESSAGES):
            producer.send_async(PAYLOAD, None, partition_key=keys[number % len(keys)])
        producer.flush()


def read_stock(
    place: Place, topic: str, name: str, remaining: Synchronized[int], ready: Synchronized[int]
) -> None:
    """Read one partition with the stock client, and acknowledge cumulatively, as ordered consumers do. Runs as a process, like
    `read_ours`.
    """
    partition = f"{topic}-partition-{name[1:]}"
    policy = pulsar.ConsumerBatchReceivePolicy(1_000, -1, 20)
    with closing(stock_client(place)) as client:
        consumer = client.subscribe(
            partition, "s", initial_position=pulsar.InitialPosition.Earliest, batch_receive_policy=policy
        )
        _count(ready, 1)
        while remaining.value > 0:
            batch = consumer.batch_receive()
            if batch:
                _touch((message.partition_key(), message.data()) for message in batch)
                consumer.acknowledge_cumulative(batch[-1])
                _count(remaining, -len(batch))


def _touch(messages: Iterable[tuple[bytes | str | None, bytes]]) -> None:
    """Read key and payload of each message, the minimum of any application; a client may create them only then."""
    for key, payload in messages:
        if not key or len(payload) != len(PAYLOAD):
            raise SystemExit(f"a message came with key {key!r} and {len(payload)} bytes")


def _count(shared: Synchronized[int], change: int) -> None:
    with shared.get_lock():
        shared.value += change


def stock_client(place: Place) -> pulsar.Client:
    """Return the stock client, which logs errors only."""
    return pulsar.Client(place.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))


def _demand_running(processes: Sequence[BaseProcess]) -> None:
    if any(process.exitcode for process in processes):
        raise SystemExit("a process of the run failed; it said why above")


Send = Callable[[Place, str, "Synchronized[float]"], None]
Read = Callable[[Place, str, str, "Synchronized[int]", "Synchronized[int]"], None]


def messages_per_second(place: Place, topic: str, send: Send, read: Read) -> float:
    """Run one producer and four consumers, each as a process. Return the rate from the first send to the last acknowledgement."""
    spawn = multiprocessing.get_context("spawn")
    started, remaining, ready = (
        spawn.Value("d", 0.0),
        spawn.Value("q", THROUGHPUT_MESSAGES),
        spawn.Value("q", 0),
    )
    readers = [
        spawn.Process(target=read, args=(place, topic, f"c{number}", remaining, ready), daemon=True)
        for number in range(CONSUMERS)
    ]
    for reader in readers:
        reader.start()
    while ready.value < CONSUMERS:
        _demand_running(readers)
        time.sleep(0.01)
    sender = spawn.Process(target=send, args=(place, topic, started), daemon=True)
    sender.start()
    while remaining.value > 0:
        _demand_running([sender, *readers])
        time.sleep(0.001)
    took: float = time.monotonic() - started.value
    for process in (sender, *readers):
        process.join()
    return THROUGHPUT_MESSAGES / took


def throughput(place: Place, app: Application, rounds: int) -> dict[str, object]:
    """Measure both clients in turns, since this machine's speed changes from minute to minute. Return the medians of the rates and of
    their ratio.
    """
    set_buckets(app, CONSUMERS)
    cleave_rates, stock_rates = [], []
    for number in range(-1, rounds):
        topic = f"topic://{NAMESPACE}/throughput-{number}"
        make_topic(app, topic, "pulsar")
        plain = f"persistent://{NAMESPACE}/plain-{number}"
        make_plain(place, plain, partitions=CONSUMERS)
        stock_rate = messages_per_second(place, plain, send_stock, read_stock)
        cleave_rate = messages_per_second(place, topic, send_ours, read_ours)
        print(f"throughput {number}: {cleave_rate:.0f} beside {stock_rate:.0f}", file=sys.stderr, flush=True)
        if number >= 0:
            stock_rates.append(stock_rate)
            cleave_rates.append(cleave_rate)
    return {
        "rounds": rounds,
        "messages": THROUGHPUT_MESSAGES,
        "messages_per_second": round(statistics.median(cleave_rates)),
        "stock_messages_per_second": round(statistics.median(stock_rates)),
        "ratio": round(
            statistics.median(
                cleave_rate / stock_rate
                for cleave_rate, stock_rate in zip(cleave_rates, stock_rates, strict=True)
            ),
            2,
        ),
        "goal_ratio": 0.7,
    }


def main() -> None:
    """Measure on private servers and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10, help="of joins")
    parser.add_argument("--pulsar-5-rounds", type=int, default=3, help="of joins; each takes about a minute")
    parser.add_argument("--throughput-rounds", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, ground(Path(directory)) as (place, app):
        figures: dict[str, object] = {"entries": entries(place, app)}
        print(f"entries: {figures['entries']}", file=sys.stderr, flush=True)
        set_buckets(app, 4)
        with closing(client_of(place.address)) as servers:
            figures["join"] = joins(
                app,
                servers,
                options.rounds,
                make_logs=lambda: PulsarLogClient(place.access),
                namespace=NAMESPACE,
                data_plane="pulsar",
                goal_ms="first message p50 250, nobody silent longer than 150",
            )
        print(f"join: {figures['join']}", file=sys.stderr, flush=True)
        figures["join_on_pulsar_5"] = joins_on_pulsar_5(
            Path(directory) / "pulsar-5", options.pulsar_5_rounds, RATE
        )
        print(f"join_on_pulsar_5: {figures['join_on_pulsar_5']}", file=sys.stderr, flush=True)
        figures["throughput"] = throughput(place, app, options.throughput_rounds)
    print(json.dumps({"benchmark": "consumption_on_pulsar", "machine": machine(), **figures}))


if __name__ == "__main__":
    main()
