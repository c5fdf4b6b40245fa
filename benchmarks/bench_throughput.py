"""Measures messages per second through the embedded data plane: a producer process, a consumer process, 100-byte payloads.

The clients are the real ones: routing by the layout, batches, the buckets that a leader assigns, acknowledgements. The leader serves from
this process, whose own time is not counted. For 1 and 4 segments, twice: at full speed (from the first send to the last acknowledgement),
and paced at the goal, where the delay of a message, send to receive, is meaningful. Commits are durable. The processor time per message,
of both clients and the server together, shows the rate that an otherwise idle machine could reach. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import struct
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass
from multiprocessing.queues import Queue
from pathlib import Path

import psutil

from benchmarks.machine import machine
from benchmarks.operation_costs import processor_seconds
from controller.bootstrap import Application
from controller.client.http_source import HttpSource
from controller.client.producer import Producer
from controller.client.servers import Servers
from controller.client.stream_consumer import StreamConsumer
from controller.dataplane.embedded import EmbeddedLogClient
from controller.devstack.postgres import DURABLE, EmbeddedPostgres
from controller.devstack.serving import serving_leader, token_for
from controller.domain.operation import Origin
from controller.services import subscription_admin, topic_admin
from controller.services.operation_runner import run_due
from controller.settings import Settings
from controller.store.journal.operations import Request
from controller.store.postgres.engine import Store
from controller.store.postgres.migrations import migrate

GOAL = 20_000
PAYLOAD_BYTES = 100
_STAMP = struct.Struct("!q")
_TICK_SECONDS = 0.02


@dataclass(frozen=True)
class Run:
    """Parameters of one measurement: address and topic, number of messages, and rate (None: full speed)."""

    url: str
    address: str
    token: str
    topic: str
    messages: int
    rate: int | None


def produce(run: Run, results: Queue[dict[str, float]]) -> None:
    """Send keyed messages that contain the instant of their sending. Put the times into `results`. Runs as a process."""
    with (
        closing(Servers([run.address], run.token)) as servers,
        closing(EmbeddedLogClient(run.url)) as logs,
    ):
        producer = Producer(HttpSource(servers), logs, run.topic)
        keys = [f"key-{i}" for i in range(1_000)]
        filler = b"x" * (PAYLOAD_BYTES - _STAMP.size)
        started, busy = time.monotonic(), time.process_time()
        for number in range(run.messages):
            if run.rate and number % round(run.rate * _TICK_SECONDS) == 0:
                producer.flush()
                time.sleep(max(0.0, started + number / run.rate - time.monotonic()))
            producer.send(_STAMP.pack(time.monotonic_ns()) + filler, keys[number % len(keys)])
        producer.flush()
        results.put({"started": started, "stored": time.monotonic(), "cpu": time.process_time() - busy})
        producer.close()


def consume(run: Run, results: Queue[dict[str, float]]) -> None:
    """Receive and acknowledge all messages, and record every tenth message's delay. Put an empty result into `results` when subscribed,
    and the times at the end. Runs as a process.
    """
    delays: list[float] = []
    remaining = run.messages
    with (
        closing(Servers([run.address], run.token)) as servers,
        closing(EmbeddedLogClient(run.url)) as logs,
        StreamConsumer(servers, logs, run.topic, "bench", "consumer", batch_messages=1_000) as consumer,
    ):
        busy = time.process_time()
        results.put({})
        while remaining:
            batch = consumer.receive(1.0)
            if batch is not None:
                now = time.monotonic_ns()
                sampled = batch.messages[::10]
                delays += [(now - _STAMP.unpack_from(m.payload)[0]) / 1e6 for m in sampled]
                consumer.acknowledge(batch)
                remaining -= len(batch.messages)
        ended = time.monotonic()
    cuts = statistics.quantiles(delays, n=100)
    results.put({"ended": ended, "p50": cuts[49], "p99": cuts[98], "cpu": time.process_time() - busy})


def measure(run: Run, pid: int | None) -> dict[str, float]:
    """Run both processes, the consumer first. Return rates in messages per second, and delays in milliseconds. `pid` is that of the
    server; None: not measured.
    """
    spawn = multiprocessing.get_context("spawn")
    sent: Queue[dict[str, float]] = spawn.Queue()
    received: Queue[dict[str, float]] = spawn.Queue()
    consumer = spawn.Process(target=consume, args=(run, received), daemon=True)
    producer = spawn.Process(target=produce, args=(run, sent), daemon=True)
    before = processor_seconds(psutil.Process(pid)) if pid else 0.0
    consumer.start()
    received.get(timeout=60)
    producer.start()
    head, tail = sent.get(timeout=600), received.get(timeout=600)
    producer.join()
    consumer.join()
    server = processor_seconds(psutil.Process(pid)) - before if pid else 0.0
    return {
        "messages_per_second": round(run.messages / (tail["ended"] - head["started"])),
        "stored_per_second": round(run.messages / (head["stored"] - head["started"])),
        "client_cpu_us_per_message": round((head["cpu"] + tail["cpu"]) / run.messages * 1e6, 1),
        "server_cpu_us_per_message": round(server / run.messages * 1e6, 1),
        "delay_p50_ms": round(tail["p50"], 1),
        "delay_p99_ms": round(tail["p99"], 1),
    }


def create_topic(url: str, segments: int) -> str:
    """Create a topic with one subscription by the ordinary services, and return its name."""
    name = f"topic://bench/throughput/s{segments}-{os.urandom(3).hex()}"
    settings = Settings(database_url=url)
    with closing(Application(settings, Store(url))) as app:
        request = Request(f"create {name}", Origin.MANUAL, "benchmark", "benchmark")
        topic_admin.create_topic(app.store, app.planes, name, request, segments=segments)
        while run_due(app.runner()):
            pass
        request = Request(f"subscribe {name}", Origin.MANUAL, "benchmark", "benchmark")
        subscription_admin.create_subscription(app.store, name, "bench", request)
        while run_due(app.runner()):
            pass
    return name


def main() -> None:
    """Measure on a private server, or on the given one, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=400_000)
    parser.add_argument("--url", help="an empty database of another server, owner's login")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        server = EmbeddedPostgres(Path(directory), settings=DURABLE)
        try:
            if options.url is None:
                server.start()
            url = options.url or server.create_database("bench")
            migrate(url)
            with serving_leader(url) as address:
                figures = {
                    f"segments_{segments}_{label}": measure(
                        Run(url, address, token_for(), create_topic(url, segments), options.messages, rate),
                        None if options.url else server.pid,
                    )
                    for segments in (1, 4)
                    for label, rate in (("flat_out", None), ("paced", GOAL))
                }
        finally:
            server.destroy()
    print(
        json.dumps(
            {
                "benchmark": "throughput",
                "machine": machine(),
                "payload_bytes": PAYLOAD_BYTES,
                "goal_messages_per_second": GOAL,
                **figures,
            }
        )
    )


if __name__ == "__main__":
    main()
