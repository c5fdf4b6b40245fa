"""Measures what gates cost standard consumers, on an unmodified Pulsar 4.2.4, each figure with and without gates in the same run.

`split`: splits of topics without messages, each read by one standard Java consumer. A split lasts until its gates are open, without
gates until the operation has ended. `admin_calls` are the requests that the broker's admin API answered, with the polls of the
worker. `entries` are the entries that the split stored in the children and in the topic of the namespace's policies. `delay`: two Java
consumers in Failover read a topic that is split and merged under traffic. A child's delay is the time from the acknowledgement of its
parents' last message to the delivery of its own first message; below zero, the consumers got the child too early. `throughput`: a Python
consumer on Pulsar's own client reads the messages that wait in four segments, which splits have made and whose gates are open. A first
round is not counted. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from multiprocessing.synchronize import Event as Signal
from pathlib import Path
from typing import Any

import pulsar
import requests
from sqlalchemy import text

from benchmarks.bench_consumption_on_pulsar import Place, ground, set_buckets, stock_client
from benchmarks.bench_sessions import wait_idle
from benchmarks.machine import machine
from controller.bootstrap import Application
from controller.client.history import SUFFIX, Event, Record, read_history
from controller.client.http_source import HttpSource
from controller.client.producer import Producer
from controller.demo.planes import NAMESPACE
from controller.devstack.process import ChildProcess
from controller.devstack.pulsar.jars import PULSAR_4
from controller.devstack.pulsar.standard_client import CONSUMER, compile_programs
from controller.domain.layout import SegmentLayout
from controller.domain.operation import Origin
from controller.domain.subscription_consumers import SubscriptionConsumers
from controller.services import segment_admin, subscription_admin, topic_admin
from controller.services.segment_admin import Planner
from controller.settings import PROJECT_ROOT
from controller.store.journal.operations import Request
from controller.store.topics import topics
from controller.store.topics.published_layout import PublishedLayout, published_segments
from tests.support.stock_clients import breaks

SUBSCRIPTION = "standard"
WITH, WITHOUT = "with_gates", "without_gates"
CONSUMERS_OF: Mapping[str, SubscriptionConsumers] = {
    WITH: SubscriptionConsumers.STOCK,
    WITHOUT: SubscriptionConsumers.CLEAVE,
}
RATE, KEYS = 500, 200
SETTLED_SECONDS = 1.5
"""Pause between two reshapes under traffic, so that each child gets messages."""
PATIENCE_SECONDS = 60.0
PAYLOAD = b"x" * 100
_POLICIES = f"persistent://{NAMESPACE}/__change_events"
_SHUT = "SELECT count(*) FROM cleave.gate WHERE topic_id = :topic_id AND state <> 'open'"
_UNWRITABLE_MS = """
    SELECT extract(epoch FROM o.committed_at - s.finished_at) * 1000 AS ms
      FROM cleave.operation o JOIN cleave.operation_step s USING (operation_id)
     WHERE o.topic_id = :topic_id AND o.kind = 'split' AND s.step = 'set-fencing'
"""


@dataclass(frozen=True)
class Topic:
    """A topic with one subscription, read by standard consumers."""

    app: Application
    place: Place
    name: str
    topic_id: int
    kind: str
    """WITH or WITHOUT."""

    @property
    def published(self) -> PublishedLayout:
        """The layout with the logs of all segments."""
        with self.app.store.transaction() as tx:
            return published_segments(tx, self.name)

    @property
    def layout(self) -> SegmentLayout:
        """The present layout."""
        return self.published.layout

    @property
    def pattern(self) -> str:
        """Pattern of all segments."""
        return f"{self.name.replace('topic://', 'persistent://')}-segment-.*"

    def reshape(self, planner: Planner) -> None:
        """Split or merge, and wait until the operation has ended and its gates are open."""
        request = _request(f"reshape-{self.name}-{self.layout.epoch}")
        segment_admin.submit(self.app.store, self.app.planes, self.name, planner, request)
        wait_idle(self.app)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.count(_SHUT):
            if time.monotonic() > deadline:
                raise SystemExit(
                    f"{self.name}: the consumers have not read to a child within {PATIENCE_SECONDS:g} s"
                )
            time.sleep(0.02)

    def split(self) -> None:
        """Split the widest segment."""
        widest = max(self.layout.active, key=lambda segment: segment.hash_range.width)
        self.reshape(segment_admin.splitting(widest.segment_id))

    def merge(self) -> None:
        """Merge the first two active segments."""
        first, second = self.layout.active[:2]
        self.reshape(segment_admin.merging(first.segment_id, second.segment_id))

    def count(self, statement: str) -> int:
        """Return the number that a statement about the topic returns."""
        with self.app.store.transaction() as tx:
            return int(tx.execute(text(statement), {"topic_id": self.topic_id}).scalar_one())

    def unwritable_ms(self) -> list[float]:
        """Return the time for which each split accepted no writes."""
        with self.app.store.transaction() as tx:
            return [float(row.ms) for row in tx.execute(text(_UNWRITABLE_MS), {"topic_id": self.topic_id})]


def _request(key: str) -> Request:
    return Request(key, Origin.MANUAL, "benchmark", "benchmark")


def make_topic(
    app: Application, place: Place, name: str, kind: str, subscriptions: Sequence[str] = (SUBSCRIPTION,)
) -> Topic:
    """Create a topic of one segment, whose subscriptions have gates or not."""
    full = f"topic://{NAMESPACE}/{name}-{kind.replace('_', '-')}"
    topic_admin.create_topic(app.store, app.planes, full, _request(f"create-{full}"), data_plane="pulsar")
    wait_idle(app)
    with app.store.transaction() as tx:
        row = topics.find_topic(tx, full)
    for subscription in subscriptions:
        request = _request(f"subscribe-{full}-{subscription}")
        subscription_admin.create_subscription(
            app.store, full, subscription, request, consumers=CONSUMERS_OF[kind]
        )
    wait_idle(app)
    return Topic(app, place, full, row.topic_id, kind)


@contextmanager
def java_consumers(topic: Topic, run: Sequence[str | Path], directory: Path, count: int) -> Iterator[Path]:
    """Run standard Java consumers of a topic as processes. Yield the directory of their histories when each is connected."""
    histories = directory / topic.name.rpartition("/")[2]
    histories.mkdir()
    with ExitStack() as running:
        for number in range(count):
            name = f"c{number}"
            history = histories / f"{name}{SUFFIX}"
            arguments: list[str | Path] = [
                topic.place.service_url,
                topic.pattern,
                name,
                history,
                SUBSCRIPTION,
                "Failover",
                "individual",
                "0",
            ]
            consumer = ChildProcess([*run, *arguments], log=histories / f"{name}.log", cwd=PROJECT_ROOT)
            running.callback(consumer.stop)
            consumer.start()
        [log] = topic.published.backing_topics.values()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(_stats(topic.place, log)["subscriptions"][SUBSCRIPTION]["consumers"]) < count:
            if time.monotonic() > deadline:
                raise SystemExit(f"a consumer has not connected; see its log in {histories}")
            time.sleep(0.1)
        yield histories


def _stats(place: Place, log: str, kind: str = "stats") -> Any:
    answer = requests.get(f"{place.admin_url}/admin/v2/{log.replace('://', '/')}/{kind}", timeout=30)
    answer.raise_for_status()
    return answer.json()


def entries_of(place: Place, logs: Sequence[str]) -> int:
    """Return the number of entries in the logs."""
    return sum(int(_stats(place, log, "internalStats")["numberOfEntries"]) for log in logs)


def answered_requests(place: Place) -> int:
    """Return the number of HTTP requests that the broker has answered."""
    answer = requests.get(f"{place.admin_url}/metrics/", timeout=30)
    answer.raise_for_status()
    [count] = re.findall(r"^jetty_requests_total\S* (\S+)$", answer.text, re.MULTILINE)
    return int(float(count))


def splits(
    app: Application, place: Place, run: Sequence[str | Path], directory: Path, rounds: int
) -> dict[str, object]:
    """Split topics without messages, with and without gates in turns. Return the figures of one split for each."""
    figures: dict[str, dict[str, list[float]]] = {}
    with ExitStack() as reading:
        read = {kind: make_topic(app, place, "idle", kind) for kind in CONSUMERS_OF}
        for topic in read.values():
            reading.enter_context(java_consumers(topic, run, directory, 1))
        for number in range(-1, rounds):
            for kind, topic in read.items():
                before, policies = answered_requests(place), entries_of(place, [_POLICIES])
                began = time.monotonic()
                topic.split()
                took = time.monotonic() - began
                calls = answered_requests(place) - before - 2  # of this process: the two last readings
                children = [segment.segment_id for segment in topic.layout.active]
                logs = [
                    log
                    for segment_id, log in topic.published.backing_topics.items()
                    if segment_id in children
                ]
                written = entries_of(place, logs) + entries_of(place, [_POLICIES]) - policies
                if number >= 0:
                    of_kind = figures.setdefault(
                        kind, {"admin_calls": [], "entries": [], "until_readable_ms": []}
                    )
                    of_kind["admin_calls"].append(calls)
                    of_kind["entries"].append(written)
                    of_kind["until_readable_ms"].append(took * 1000)
            for topic in read.values():
                topic.merge()
        for kind, topic in read.items():
            figures[kind]["unwritable_ms"] = topic.unwritable_ms()
    return {
        kind: {
            "splits": rounds,
            **{name: round(statistics.median(values)) for name, values in of_kind.items()},
        }
        for kind, of_kind in figures.items()
    }


def send(place: Place, topic: str, stop: Signal) -> None:
    """Send RATE messages per second with Cleave's client until `stop` is set. Runs as a process."""
    numbers = [0] * KEYS
    with (
        place.clients() as (servers, logs),
        Producer(HttpSource(servers), logs, topic, batch_messages=20) as producer,
    ):
        began, total = time.monotonic(), 0
        while not stop.wait(0.02):
            due = int((time.monotonic() - began) * RATE)
            for number in range(total, due):
                key = number * 7919 % KEYS
                producer.send(f"p {numbers[key]}".encode(), f"key-{key}")
                numbers[key] += 1
            total = due
            producer.flush()


def delays(
    app: Application, place: Place, run: Sequence[str | Path], directory: Path, reshapes: int
) -> dict[str, object]:
    """Split and merge a topic under traffic, with and then without gates. Return the delays of the children."""
    return {
        kind: _delays(make_topic(app, place, "busy", kind), run, directory, reshapes) for kind in CONSUMERS_OF
    }


def _delays(topic: Topic, run: Sequence[str | Path], directory: Path, reshapes: int) -> dict[str, object]:
    spawn = multiprocessing.get_context("spawn")
    stop = spawn.Event()
    with java_consumers(topic, run, directory, 2) as histories:
        sender = spawn.Process(target=send, args=(topic.place, topic.name, stop), daemon=True)
        sender.start()
        while not any(history.stat().st_size for history in histories.glob(f"*{SUFFIX}")):
            time.sleep(0.1)
        for number in range(reshapes):
            time.sleep(SETTLED_SECONDS)
            (topic.split if number % 2 == 0 else topic.merge)()
        time.sleep(SETTLED_SECONDS)
        stop.set()
        sender.join()
        time.sleep(SETTLED_SECONDS)
    records = list(read_history(*histories.glob(f"*{SUFFIX}")))
    if topic.kind == WITH and breaks(records):
        raise SystemExit(f"{breaks(records)} messages came before their predecessor through gates")
    milliseconds = delays_of(topic.layout, records)
    return {
        "children": len(milliseconds),
        "median_ms": round(statistics.median(milliseconds)),
        "worst_ms": round(max(milliseconds)),
        "messages": len({(one.key, one.number) for one in records if one.event is Event.DELIVERED}),
    }


def delays_of(layout: SegmentLayout, records: Sequence[Record]) -> list[float]:
    """Return the delay of each child that got a message, in milliseconds."""
    first, last = dict[str, int](), dict[str, int]()
    for record in records:
        if record.event is Event.DELIVERED:
            first[record.segment] = min(record.at_ns, first.get(record.segment, record.at_ns))
        elif record.event is Event.ACKNOWLEDGED:
            last[record.segment] = max(record.at_ns, last.get(record.segment, 0))
    found = []
    for segment_id, segment in layout.segments.items():
        drained = [last[str(parent)] for parent in segment.parent_ids if str(parent) in last]
        if drained and str(segment_id) in first:
            found.append((first[str(segment_id)] - max(drained)) / 1e6)
    return found


def fill(place: Place, topic: str, messages: int) -> None:
    """Send all messages with Cleave's client. Runs as a process."""
    with (
        place.clients() as (servers, logs),
        Producer(HttpSource(servers), logs, topic, batch_messages=1_000) as producer,
    ):
        for number in range(messages):
            producer.send(PAYLOAD, f"key-{number % KEYS}")
        producer.flush()


def read_rate(topic: Topic, subscription: str, messages: int) -> float:
    """Return the messages per second at which one consumer reads, from its first message to its last acknowledgement."""
    policy = pulsar.ConsumerBatchReceivePolicy(1_000, -1, 20)
    with closing(stock_client(topic.place)) as client:
        consumer = client.subscribe(
            re.compile(topic.pattern),
            subscription,
            consumer_type=pulsar.ConsumerType.Failover,
            initial_position=pulsar.InitialPosition.Earliest,
            batch_receive_policy=policy,
        )
        received, began = 0, 0.0
        while received < messages:
            batch = consumer.batch_receive()
            began = began or time.monotonic()
            for message in batch:
                if not message.partition_key() or len(message.data()) != len(PAYLOAD):
                    raise SystemExit("a message came that was not sent")
            last_of_topic = {message.topic_name(): message for message in batch}
            for message in last_of_topic.values():
                consumer.acknowledge_cumulative(message)
            received += len(batch)
        return messages / (time.monotonic() - began)


def throughput(app: Application, place: Place, rounds: int, messages: int) -> dict[str, object]:
    """Read topics of four segments with and without gates in turns, each time with another subscription. Return the medians of the rates
    and of their ratio.
    """
    names = [f"round-{number}" for number in range(rounds + 1)]
    read = {kind: make_topic(app, place, "full", kind, names) for kind in CONSUMERS_OF}
    spawn = multiprocessing.get_context("spawn")
    for topic in read.values():
        for _ in range(3):
            topic.split()
        filling = spawn.Process(target=fill, args=(place, topic.name, messages), daemon=True)
        filling.start()
        filling.join()
    rates: dict[str, list[float]] = {kind: [] for kind in read}
    for number, name in enumerate(names):
        for kind in list(read) if number % 2 else reversed(list(read)):
            rate = read_rate(read[kind], name, messages)
            print(f"throughput {number} {kind}: {rate:.0f}", file=sys.stderr, flush=True)
            if number > 0:
                rates[kind].append(rate)
    ratios = [gated / plain for gated, plain in zip(rates[WITH], rates[WITHOUT], strict=True)]
    return {
        "rounds": rounds,
        "messages": messages,
        **{
            f"messages_per_second_{kind}": round(statistics.median(of_kind))
            for kind, of_kind in rates.items()
        },
        "ratio": round(statistics.median(ratios), 2),
    }


def main() -> None:
    """Measure on private servers and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--splits", type=int, default=7, help="without messages, with gates and without")
    parser.add_argument("--reshapes", type=int, default=10, help="under traffic, with gates and without")
    parser.add_argument("--throughput-rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=400_000, help="of one round of the throughput")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, ground(Path(name)) as (place, app):
        directory = Path(name)
        run = [*compile_programs(directory / "java"), CONSUMER]
        set_buckets(app, 1)
        parts: Mapping[str, Callable[[], dict[str, object]]] = {
            "split": lambda: splits(app, place, run, directory, options.splits),
            "delay": lambda: delays(app, place, run, directory, options.reshapes),
            "throughput": lambda: throughput(app, place, options.throughput_rounds, options.messages),
        }
        figures: dict[str, object] = {}
        for part, measure in parts.items():
            began = time.monotonic()
            figures[part] = measure()
            print(f"{part}, {time.monotonic() - began:.0f} s: {figures[part]}", file=sys.stderr, flush=True)
    print(json.dumps({"benchmark": "gates", "machine": machine(), "pulsar": PULSAR_4, **figures}))


if __name__ == "__main__":
    main()
