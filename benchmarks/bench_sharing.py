"""Measures the three uses of entry buckets that PIP-486 names, on the embedded logs with a real worker.

`sealed_backlog`: a sealed segment of four buckets is drained by one consumer, and by four that may share it; for each message the
application waits a millisecond, as for a call to a database. `low_rate`: eight consumers join a topic of one segment at 50 messages per
second: the time until each owns a bucket, and the number of segments then. `many_consumers`: 200 consumers on a topic of 64 segments that
may have no more. The auto-scaler of the last two is on, as by default. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.bench_operations import application
from benchmarks.bench_sessions import make_topic, wait_idle, workers
from benchmarks.machine import machine
from controller.bootstrap import Application
from controller.client.http_source import HttpSource
from controller.client.producer import Producer
from controller.client.servers import Servers
from controller.client.stream_consumer import StreamConsumer
from controller.dataplane.embedded import EmbeddedLogClient
from controller.devstack.postgres import DURABLE, EmbeddedPostgres
from controller.devstack.serving import client_of
from controller.domain.operation import Origin
from controller.domain.policy import AutoScalePolicy
from controller.services import segment_admin
from controller.store.journal.operations import Request
from controller.store.postgres.migrations import migrate
from controller.store.topics import layouts, policies, subscriptions, topics

WORK_SECONDS = 0.001
BACKLOG_MESSAGES = 8_000
GOAL_TIMES_FASTER = 3.0
LOW_RATE = 50
ENDS_WITHIN_SECONDS = 300.0


@contextmanager
def one_worker() -> Iterator[tuple[Application, Servers]]:
    """Start a private server with a database and a worker process, and yield the application and a client of the worker."""
    with worker_at() as (app, address), closing(client_of(address)) as servers:
        yield app, servers


@contextmanager
def worker_at() -> Iterator[tuple[Application, str]]:
    """Start a private server with a database and a worker process, and yield the application and the worker's address."""
    with tempfile.TemporaryDirectory() as directory, ExitStack() as running:
        server = EmbeddedPostgres(Path(directory) / "postgres", settings=DURABLE)
        running.callback(server.destroy)
        server.start()
        url = server.create_database("bench")
        migrate(url)
        app = running.enter_context(application(url))
        [(_, _, address)] = running.enter_context(workers(url, Path(directory), 1))
        yield app, address


class Group:
    """Consumers of one topic, each in a thread; `handled` counts the messages of each."""

    def __init__(
        self, app: Application, servers: Servers, topic: str, count: int, work_seconds: float = 0.0
    ) -> None:
        self._logs = EmbeddedLogClient(app.settings.embedded_dsn)
        self._ending, self._work_seconds = threading.Event(), work_seconds
        self.handled = [0] * count
        self.owns = [False] * count
        self._threads = [
            threading.Thread(target=self._read, args=(servers, topic, number), daemon=True)
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def _read(self, servers: Servers, topic: str, number: int) -> None:
        name = f"c{number:03}"
        with StreamConsumer(servers, self._logs, topic, "s", name, batch_messages=50) as consumer:
            while not self._ending.is_set():
                batch = consumer.receive(0.2)
                self.owns[number] = bool(consumer.buckets)
                if batch is not None:
                    time.sleep(self._work_seconds * len(batch.messages))
                    if consumer.acknowledge(batch):
                        self.handled[number] += len(batch.messages)

    def finish(self) -> None:
        """Stop and close all consumers."""
        self._ending.set()
        for thread in self._threads:
            thread.join()
        self._logs.close()

    def has_handled(self, messages: int) -> bool:
        """Return True if the consumers have handled that many messages together."""
        return sum(self.handled) >= messages


def until(condition: Callable[[], bool]) -> float:
    """Wait until the condition is True, and return the seconds. Ends the program after ENDS_WITHIN_SECONDS."""
    begun = time.perf_counter()
    while not condition():
        if time.perf_counter() - begun > ENDS_WITHIN_SECONDS:
            raise SystemExit(f"not within {ENDS_WITHIN_SECONDS:g} s")
        time.sleep(0.01)
    return time.perf_counter() - begun


def set_policy(app: Application, change: Callable[[AutoScalePolicy], AutoScalePolicy]) -> None:
    with app.store.transaction() as tx:
        policies.set_cluster(tx, change(policies.get_cluster(tx)), actor="benchmark")


def active_segments(app: Application, topic: str) -> list[int]:
    """Return the number of buckets of each active segment."""
    with app.store.transaction() as tx:
        layout = layouts.load_layout(tx, topics.find_topic(tx, topic).topic_id)
        return [segment.bucket_count for segment in layout.active]


@contextmanager
def sending(app: Application, servers: Servers, topic: str, rate: float) -> Iterator[Callable[[], int]]:
    """Send messages of many keys at a steady rate in a thread until the end of the block, each stored before the next one. Yield a
    function that returns their number.
    """
    ending, stored = threading.Event(), [0]

    def send() -> None:
        with closing(EmbeddedLogClient(app.settings.embedded_dsn)) as logs:
            producer = Producer(HttpSource(servers), logs, topic)
            while not ending.wait(1 / rate):
                producer.send(b"payload", f"key-{stored[0] % 5_000}")
                producer.flush()
                stored[0] += 1
            producer.close()

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    yield lambda: stored[0]
    ending.set()
    thread.join()


def sealed_backlog(app: Application, servers: Servers) -> dict[str, object]:
    """Drain the same backlog with one consumer and with four, and return the figures."""
    set_policy(app, lambda policy: replace(policy, enabled=False, entry_bucket_budget=4))
    seconds = {}
    for consumers in (1, 4):
        topic = f"topic://bench/sharing/backlog-{consumers}"
        topic_id = make_topic(app, topic)
        with closing(EmbeddedLogClient(app.settings.embedded_dsn)) as logs:
            producer = Producer(HttpSource(servers), logs, topic)
            for number in range(BACKLOG_MESSAGES):
                producer.send(b"payload", f"key-{number % 5_000}")
            producer.flush()
            producer.close()
        with app.store.transaction() as tx:
            subscriptions.set_sharing(tx, topic_id, "s", parents_block=None, drain_consumers=consumers)
        request = Request(f"split-{topic}", Origin.MANUAL, "benchmark", "benchmark")
        segment_admin.submit(app.store, app.planes, topic, segment_admin.splitting(0), request)
        wait_idle(app)
        group = Group(app, servers, topic, consumers, WORK_SECONDS)
        seconds[consumers] = until(partial(group.has_handled, BACKLOG_MESSAGES))
        group.finish()
    times_faster = round(seconds[1] / seconds[4], 2)
    return {
        "messages": BACKLOG_MESSAGES,
        "seconds_by_one": round(seconds[1], 2),
        "seconds_by_four": round(seconds[4], 2),
        "times_faster": times_faster,
        "goal_times_faster": GOAL_TIMES_FASTER,
        "goal": "met" if times_faster >= GOAL_TIMES_FASTER else "missed",
    }


def low_rate(app: Application, servers: Servers) -> dict[str, object]:
    """Let eight consumers join a topic that needs no physical split, and return the figures."""
    set_policy(app, lambda policy: replace(policy, enabled=True, entry_bucket_budget=4))
    topic = "topic://bench/sharing/low-rate"
    make_topic(app, topic)
    with sending(app, servers, topic, LOW_RATE):
        group = Group(app, servers, topic, 8)
        shared = until(lambda: all(group.owns))
        fed = until(lambda: all(group.handled))
        group.finish()
    return {
        "consumers": 8,
        "messages_per_second": LOW_RATE,
        "seconds_until_each_owns_a_bucket": round(shared, 2),
        "seconds_until_each_has_a_message": round(shared + fed, 2),
        "buckets_of_the_active_segments": active_segments(app, topic),
        "goal": "one active segment, each consumer has messages",
    }


def many_consumers(app: Application, servers: Servers, count: int) -> dict[str, object]:
    """Let more consumers join than there may be segments, and return the figures."""
    set_policy(app, lambda policy: replace(policy, enabled=True, entry_bucket_budget=4, max_segments=64))
    topic = "topic://bench/sharing/many"
    make_topic(app, topic, segments=64)
    group = Group(app, servers, topic, count)
    shared = until(lambda: all(group.owns))
    with sending(app, servers, topic, 200) as stored:
        fed = until(lambda: all(group.handled))
        messages, handled = stored(), sum(group.handled)
    group.finish()
    buckets = active_segments(app, topic)
    return {
        "consumers": count,
        "seconds_until_each_owns_a_bucket": round(shared, 1),
        "seconds_until_each_has_a_message": round(shared + fed, 1),
        "messages_by_then": messages,  # a bucket's first message comes when one of its keys does
        "of_which_handled": handled,
        "active_segments": len(buckets),
        "buckets": sum(buckets),
        "without_a_share": group.handled.count(0),  # a rebucket takes a bucket away for a moment
        "goal": "64 segments, nobody without a share",
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure on a private server and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--consumers", type=int, default=200)
    options = parser.parse_args(arguments)
    with one_worker() as (app, servers):
        figures: dict[str, object] = {}
        parts: dict[str, Callable[[], object]] = {
            "sealed_backlog": lambda: sealed_backlog(app, servers),
            "low_rate": lambda: low_rate(app, servers),
            "many_consumers": lambda: many_consumers(app, servers, options.consumers),
        }
        for name, measure in parts.items():
            figures[name] = measure()
            print(f"{name}: {figures[name]}", file=sys.stderr, flush=True)
    print(json.dumps({"benchmark": "sharing", "machine": machine(), **figures}))


if __name__ == "__main__":
    main()
