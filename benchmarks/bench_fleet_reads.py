"""Measures the reads of people and Prometheus from a large fleet, on a real PostgreSQL: seconds for each, the median of several.

100,000 topics of 4 segments, all evaluated once. `scrape`: all data that `cleave metrics` reads, with series for a given number of
topics. `fleet`: the first page of the list, for which the needs of every topic are computed. `topic`: the same row of one topic. Prints
one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from sqlalchemy import Connection

from benchmarks.fleet import FILLING_SECONDS, analyze, insert_fleet
from benchmarks.machine import machine
from controller.dataplane.embedded import EmbeddedDataPlane
from controller.devstack.postgres import DURABLE, EmbeddedPostgres
from controller.domain.evaluator import ALL_LANES
from controller.questions.overviews import ShowFleet, ShowOverview, read_fleet, read_overview
from controller.services.autoscaler import run_pass
from controller.store.fleet_figures import fleet_figures
from controller.store.postgres.engine import Store
from controller.store.postgres.migrations import migrate
from controller.store.postgres.snapshots import snapshot

SEGMENTS = 4
SERIES = (0, 1000)
TOPICS_SHOWN = 50  # a terminal's lines


def measure(url: str, topics: int, rounds: int) -> dict[str, object]:
    """Fill the empty database, and return the median seconds of each read."""
    migrate(url)
    store = Store(url, statement_seconds=FILLING_SECONDS)
    planes = {"embedded": EmbeddedDataPlane(url, call_timeout_seconds=5.0)}
    try:
        with store.transaction() as tx:
            insert_fleet(tx, topics, SEGMENTS)
        run_pass(store, planes, ALL_LANES, decided_by="benchmark", limit=topics)
        with store.transaction() as tx:
            analyze(tx)

        def seconds(read: Callable[[Connection], object]) -> float:
            taken = []
            for _ in range(rounds):
                started = time.perf_counter()
                with snapshot(store) as tx:
                    read(tx)
                taken.append(time.perf_counter() - started)
            return round(statistics.median(taken), 3)

        scrapes = {
            f"scrape, {series} series": {
                "seconds": seconds(partial(fleet_figures, prefix="", most_topics=series))
            }
            for series in SERIES
        }
        name = f"topic://bench/n0/t{min(topics, 999)}"
        return {
            "topics": topics,
            "segments_per_topic": SEGMENTS,
            "reading": {
                **scrapes,
                "fleet": {"seconds": seconds(lambda tx: read_fleet(tx, ShowFleet(limit=TOPICS_SHOWN)))},
                "topic": {"seconds": seconds(lambda tx: read_overview(tx, ShowOverview(topic=name)))},
            },
        }
    finally:
        planes["embedded"].close()
        store.dispose()


def main() -> None:
    """Measure on a private server and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        server = EmbeddedPostgres(Path(directory), settings=DURABLE)
        try:
            server.start()
            figures = measure(server.create_database("bench"), options.topics, options.rounds)
        finally:
            server.destroy()
    print(json.dumps({"benchmark": "fleet_reads", "machine": machine(), **figures}))


if __name__ == "__main__":
    main()
