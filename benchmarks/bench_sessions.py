"""Measures a second stream consumer that joins a topic of one segment under load, and the kill of a leader: embedded logs, a real worker.

`join`: from the call that creates the second `StreamConsumer` to its first message, and the longest time for which the first consumer had
no message from that call on, and the second one from its first message on. `split`: the longest time of a producer's call across a split.
`leader_killed`: with two workers, from the kill of the topic's leader to the first assignment that the next one serves, and the longest
time without a message of a consumer that has work. 2,000 messages per second. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from benchmarks.bench_operations import application
from benchmarks.machine import machine
from controller.bootstrap import Application
from controller.client.http_source import HttpSource
from controller.client.producer import Producer
from controller.client.servers import Servers
from controller.client.stream_consumer import StreamConsumer
from controller.dataplane.embedded import EmbeddedLogClient
from controller.dataplane.log_client import LogClient
from controller.devstack.ports import free_port
from controller.devstack.postgres import DURABLE, EmbeddedPostgres
from controller.devstack.process import ChildProcess
from controller.devstack.serving import SECRET, client_of
from controller.domain.errors import LostRace, StoreUnavailable
from controller.domain.operation import Origin
from controller.services import segment_admin, subscription_admin, topic_admin
from controller.settings import PROJECT_ROOT
from controller.store import leases
from controller.store.journal.operations import Request
from controller.store.postgres.migrations import migrate
from controller.store.topics import policies, topics
from tests.support.live_operations import live_operations

RATE = 2_000
TICK_SECONDS = 0.01
LEASE_SECONDS = 5.0
KEYS = [f"key-{number}" for number in range(1_000)]


class Reader(threading.Thread):
    """A thread that reads and acknowledges until `finish`, and records the time of each batch."""

    def __init__(self, servers: Servers, logs: LogClient, topic: str, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._servers, self._logs, self._topic = servers, logs, topic
        self._ending = threading.Event()
        self.instants: list[float] = []

    def run(self) -> None:
        with StreamConsumer(self._servers, self._logs, self._topic, "s", self.name) as consumer:
            while not self._ending.is_set():
                batch = consumer.receive(0.2)
                if batch is not None:
                    self.instants.append(time.perf_counter())
                    consumer.acknowledge(batch)

    def finish(self) -> None:
        """Stop reading, and close the consumer."""
        self._ending.set()
        self.join()

    def longest_silence_ms(self, since: float) -> float:
        """Return the longest time between two batches from `since` on, in milliseconds."""
        instants = [since, *(instant for instant in self.instants if instant >= since)]
        return max(
            (after - before) * 1000
            for before, after in zip(instants, [*instants[1:], time.perf_counter()], strict=True)
        )


class Sender(threading.Thread):
    """A thread that sends at the rate until `finish`, and records the duration of each round."""

    def __init__(self, servers: Servers, logs: LogClient, topic: str) -> None:
        super().__init__(name="sender", daemon=True)
        self._producer = Producer(HttpSource(servers), logs, topic)
        self._ending = threading.Event()
        self.rounds: list[tuple[float, float]] = []

    def run(self) -> None:
        begun, sent = time.perf_counter(), 0
        while not self._ending.wait(TICK_SECONDS):
            due = int((time.perf_counter() - begun) * RATE)
            started = time.perf_counter()
            for number in range(sent, due):
                self._producer.send(b"x" * 100, KEYS[number % len(KEYS)])
            self._producer.flush()
            sent = due
            self.rounds.append((started, (time.perf_counter() - started) * 1000))

    def finish(self) -> None:
        """Stop sending, and close the producer."""
        self._ending.set()
        self.join()
        self._producer.close()


@contextmanager
def workers(url: str, directory: Path, count: int) -> Iterator[list[tuple[ChildProcess, str, str]]]:
    """Run `count` serving workers as processes, and stop them at the end. Yield each with its name and address."""
    running = []
    try:
        for number in range(count):
            port = free_port()
            env = {
                **os.environ,
                "CLEAVE_DATABASE_URL": url,
                "CLEAVE_API_SECRET": SECRET,
                "CLEAVE_SERVE_PORT": str(port),
                "CLEAVE_WORKER_LEASE_SECONDS": str(LEASE_SECONDS),
            }
            command = [
                sys.executable,
                "-m",
                "controller.commands.cli",
                "worker",
                "--no-collect",
                "--name",
                f"w{number}",
            ]
            child = ChildProcess(command, log=directory / f"w{number}.log", cwd=PROJECT_ROOT, env=env)
            child.start()
            running.append((child, f"w{number}", f"http://127.0.0.1:{port}"))
        yield running
    finally:
        for child, _, _ in running:
            child.stop()


def make_topic(app: Application, name: str, data_plane: str = "embedded", segments: int = 1) -> int:
    """Create a topic with the subscription `s`, wait until both operations have ended, and return the id of the topic."""

    def request(what: str) -> Request:
        return Request(f"{what}-{name}", Origin.MANUAL, "benchmark", "benchmark")

    topic_admin.create_topic(
        app.store, app.planes, name, request("create"), data_plane=data_plane, segments=segments
    )
    wait_idle(app)
    subscription_admin.create_subscription(app.store, name, "s", request("subscribe"))
    wait_idle(app)
    with app.store.transaction() as tx:
        return topics.find_topic(tx, name).topic_id


def wait_idle(app: Application) -> None:
    """Wait until no operation is live."""
    while True:
        with app.store.transaction() as tx:
            if not live_operations(tx):
                return
        time.sleep(0.02)


def joins(
    app: Application,
    servers: Servers,
    rounds: int,
    *,
    make_logs: Callable[[], LogClient],
    namespace: str = "bench/sessions",
    data_plane: str = "embedded",
    goal_ms: str = "first message p50 100, nobody silent longer than 150, producer p99 150",
) -> dict[str, object]:
    """Let a second consumer join each of `rounds` new topics, then split the topic, and stop its clients. Return the figures, in
    milliseconds.
    """
    first_message, split_pause = [], []
    silence: dict[str, list[float]] = {"first_consumer": [], "newcomer": []}
    for number in range(rounds):
        name = f"topic://{namespace}/joined-{number}"
        make_topic(app, name, data_plane)
        logs = make_logs()
        sender, first = Sender(servers, logs, name), Reader(servers, logs, name, "one")
        sender.start()
        first.start()
        while len(first.instants) < 20:
            time.sleep(0.01)
        second = Reader(servers, logs, name, "two")
        joined = time.perf_counter()
        second.start()
        while not second.instants:
            time.sleep(0.001)
        first_message.append((second.instants[0] - joined) * 1000)
        time.sleep(0.5)
        silence["first_consumer"].append(first.longest_silence_ms(joined))
        silence["newcomer"].append(second.longest_silence_ms(second.instants[0]))
        reshaped = time.perf_counter()
        request = Request(f"split-{name}", Origin.MANUAL, "benchmark", "benchmark")
        segment_admin.submit(app.store, app.planes, name, segment_admin.splitting(0), request)
        wait_idle(app)
        split_at = time.perf_counter()
        while not any(
            at >= split_at for at, _ in sender.rounds[-20:]
        ):  # the one that the split held up has ended
            time.sleep(0.01)
        split_pause.append(max(took for at, took in sender.rounds if at >= reshaped))
        for part in (sender, first, second):
            part.finish()
        logs.close()
    return {
        "rounds": rounds,
        "messages_per_second": RATE,
        "first_message_p50_ms": round(statistics.median(first_message), 1),
        "first_message_worst_ms": round(max(first_message), 1),
        **{
            f"{reader}_silence_{name}_ms": round(figure, 1)
            for reader, silences in silence.items()
            for name, figure in (("p50", statistics.median(silences)), ("worst", max(silences)))
        },
        "producer_pause_across_a_split_p50_ms": round(statistics.median(split_pause), 1),
        "producer_pause_across_a_split_worst_ms": round(max(split_pause), 1),
        "goal_ms": goal_ms,
    }


def leader_killed(
    app: Application, running: list[tuple[ChildProcess, str, str]], servers: Servers
) -> dict[str, object]:
    """Kill the topic's leader while a consumer reads, and wait until the next leader serves. Return the figures."""
    name = "topic://bench/sessions/led"
    topic_id = make_topic(app, name)
    logs = EmbeddedLogClient(app.settings.embedded_dsn)
    sender, reader = Sender(servers, logs, name), Reader(servers, logs, name, "one")
    sender.start()
    reader.start()
    while len(reader.instants) < 20:
        time.sleep(0.01)
    shard = f"shard/{topic_id % app.settings.worker_shards}"
    with app.store.transaction() as tx:
        [holder] = [lease.holder for lease in leases.live_leases(tx, shard) if lease.name == shard]
    [leader] = [child for child, own, _ in running if own == holder]
    killed = time.perf_counter()
    leader.kill()
    path = f"/api/v1/topics/bench/sessions/led/subscriptions/s/consumers/{reader.name}"
    while True:
        with suppress(StoreUnavailable):
            try:
                servers.ask("POST", f"{path}/pulse", document={"incarnation": "nobody's"})
            except LostRace:
                break
        time.sleep(0.01)
    served = (time.perf_counter() - killed) * 1000
    time.sleep(1.0)
    silence = reader.longest_silence_ms(killed)
    for part in (sender, reader):
        part.finish()
    logs.close()
    return {
        "served_again_ms": round(served),
        "lease_seconds": LEASE_SECONDS,
        "goal_ms": round((LEASE_SECONDS + 1) * 1000),
        "longest_silence_of_a_consumer_with_work_ms": round(silence, 1),
    }


def measure(url: str, directory: Path, rounds: int) -> dict[str, object]:
    """Return all figures. The auto-scaler is off."""
    migrate(url)
    with application(url) as app:
        with app.store.transaction() as tx:
            policy = replace(policies.get_cluster(tx), enabled=False)
            policies.set_cluster(tx, policy, actor="benchmark")
        with workers(url, directory, 1) as running:
            servers = client_of(*(address for _, _, address in running))
            joined = joins(
                app, servers, rounds, make_logs=lambda: EmbeddedLogClient(app.settings.embedded_dsn)
            )
            servers.close()
        with workers(url, directory, 2) as running:
            servers = client_of(*(address for _, _, address in running))
            time.sleep(2 * LEASE_SECONDS)  # until each has its share
            killed = leader_killed(app, running, servers)
            servers.close()
    return {"join": joined, "leader_killed": killed}


def main() -> None:
    """Measure on a private server and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        server = EmbeddedPostgres(Path(directory) / "postgres", settings=DURABLE)
        try:
            server.start()
            figures = measure(server.create_database("bench"), Path(directory), options.rounds)
        finally:
            server.destroy()
    print(json.dumps({"benchmark": "sessions", "machine": machine(), **figures}))


if __name__ == "__main__":
    main()
