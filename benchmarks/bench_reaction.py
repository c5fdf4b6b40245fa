"""Measures the time from a consumer's registration until its segment is active, with a real worker process.

Each round registers one consumer too many on a one-segment topic, and waits for the layout notification of the split. Also prints the
worker's memory with 10,000 topics in the database. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import psutil
from sqlalchemy import text

from benchmarks.bench_operations import application
from benchmarks.fleet import insert_fleet
from benchmarks.machine import machine
from controller.bootstrap import Application
from controller.devstack.postgres import DURABLE, EmbeddedPostgres
from controller.devstack.process import ChildProcess
from controller.domain.operation import Origin
from controller.postgres.listener import Listener
from controller.services import subscription_admin, topic_admin
from controller.settings import PROJECT_ROOT
from controller.store.journal.operations import Request
from controller.store.postgres.migrations import migrate
from controller.store.topics import consumers, policies, topics
from tests.support.live_operations import live_operations


def prepare(app: Application, rounds: int) -> list[int]:
    """Create one-segment topics with a stream subscription and its first consumer, and return their ids."""
    ids = []
    for number in range(rounds):
        name = f"topic://bench/reaction/t{number}"
        topic_admin.create_topic(
            app.store, app.planes, name, Request(f"c{number}", Origin.MANUAL, "benchmark", "benchmark")
        )
    _wait_idle(app)
    for number in range(rounds):
        name = f"topic://bench/reaction/t{number}"
        request = Request(f"s{number}", Origin.MANUAL, "benchmark", "benchmark")
        subscription_admin.create_subscription(app.store, name, "s", request)
    _wait_idle(app)
    with app.store.transaction() as tx:
        # A newcomer is to have a segment of its own, however little there is to read: sharing buckets asks no operation.
        policy = replace(policies.get_cluster(tx), split_vs_rebucket_min_msg_rate_in=0.0)
        policies.set_cluster(tx, policy, actor="benchmark")
        for number in range(rounds):
            topic_id = topics.find_topic(tx, f"topic://bench/reaction/t{number}").topic_id
            consumers.register(tx, topic_id, "s", "first")
            ids.append(topic_id)
    return ids


def _wait_idle(app: Application) -> None:
    while True:
        with app.store.transaction() as tx:
            live = live_operations(tx)
            behind = tx.execute(
                text("SELECT count(*) FROM cleave.evaluation WHERE consumer_version < input_version")
            ).scalar_one()
        if not live and not behind:
            return
        time.sleep(0.05)


def react(app: Application, topic_ids: list[int]) -> list[float]:
    """Register a second consumer on each topic, and return the milliseconds until its split is notified. Raises RuntimeError after 30 s
    without a split.
    """
    listener = Listener(app.store.address, ["cleave_layout"])
    listener.wait(0.1)
    took = []
    for topic_id in topic_ids:
        started = time.perf_counter()
        with app.store.transaction() as tx:
            consumers.register(tx, topic_id, "s", "second")
        while not any(n.payload.startswith(f"{topic_id}:") for n in listener.wait(5.0)):
            if time.perf_counter() - started > 30:
                raise RuntimeError(f"topic {topic_id} did not split")
        took.append((time.perf_counter() - started) * 1000)
        time.sleep(0.05)  # the worker finishes what follows the commit: rounds do not overlap
    listener.close()
    return took


def measure(url: str, directory: Path, rounds: int, fleet: int) -> dict[str, object]:
    """Return the latencies, and the worker's memory before and after."""
    migrate(url)
    with application(url) as app:
        with app.store.transaction() as tx:
            insert_fleet(tx, fleet, 4)

        worker = ChildProcess(
            [sys.executable, "-m", "controller.commands.cli", "worker", "--no-collect"],
            log=directory / "worker.log",
            cwd=PROJECT_ROOT,
            env={**os.environ, "CLEAVE_DATABASE_URL": url},
        )
        worker.start()
        try:
            topic_ids = prepare(app, rounds)
            _wait_idle(app)
            took = sorted(react(app, topic_ids))
            memory = psutil.Process(worker.pid).memory_info().rss
        finally:
            worker.stop()
    return {
        "rounds": len(took),
        "p50_ms": round(statistics.median(took), 1),
        "p99_ms": round(took[min(len(took) - 1, int(len(took) * 0.99))], 1),
        "worst_ms": round(took[-1], 1),
        "goal_ms": {"p50": 20, "p99": 50},
        "worker_megabytes": round(memory / 1e6, 1),
        "worker_topics": fleet + rounds,
        "goal_megabytes": 200,
    }


def main() -> None:
    """Measure on a private server and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--fleet", type=int, default=10_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        server = EmbeddedPostgres(Path(directory) / "postgres", settings=DURABLE)
        try:
            server.start()
            figures = measure(server.create_database("bench"), Path(directory), options.rounds, options.fleet)
        finally:
            server.destroy()
    print(json.dumps({"benchmark": "reaction", "machine": machine(), **figures}))


if __name__ == "__main__":
    main()
