"""Measures a pass over a fleet: from reading the topics that are due to the decision log and the intents, on a real PostgreSQL.

Three passes over 100,000 topics of 4 segments: all topics dirty (a first start), 1 % changed (a third of them hot, a third cold), and
nothing changed. All topics have the segments that their load needs; a topic that could be merged is evaluated again every minute.
Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

from benchmarks.fleet import FILLING_SECONDS, analyze, change_loads, insert_fleet
from benchmarks.machine import machine
from controller.dataplane.embedded import EmbeddedDataPlane
from controller.devstack.postgres import DURABLE, EmbeddedPostgres
from controller.domain.evaluator import ALL_LANES
from controller.services.autoscaler import PassResult, run_pass
from controller.store.postgres.engine import Store
from controller.store.postgres.migrations import migrate


def measure(url: str, topics: int, segments: int, change_every: int) -> dict[str, object]:
    """Migrate and fill the empty database, and return seconds and counts of three passes: the first, one after a merge of loads, and one
    without changes. The merge changes the load of one of `change_every` topics.
    """
    migrate(url)
    store = Store(url, statement_seconds=FILLING_SECONDS)
    planes = {"embedded": EmbeddedDataPlane(url, call_timeout_seconds=5.0)}

    def timed_pass() -> tuple[float, PassResult]:
        started = time.perf_counter()
        result = run_pass(store, planes, ALL_LANES, decided_by="benchmark", limit=topics)
        return round(time.perf_counter() - started, 3), result

    try:
        with store.transaction() as tx:
            insert_fleet(tx, topics, segments)
        with store.transaction() as tx:
            analyze(tx)
        first_seconds, first = timed_pass()
        started = time.perf_counter()
        with store.transaction() as tx:
            merged = change_loads(tx, "run-1", change_every)
        merge_seconds = round(time.perf_counter() - started, 3)
        changed_seconds, changed = timed_pass()
        idle_seconds, idle = timed_pass()
    finally:
        planes["embedded"].close()
        store.dispose()
    return {
        "topics": topics,
        "segments_per_topic": segments,
        "first_pass": {"seconds": first_seconds, "evaluated": first.evaluated},
        "load_merge": {"seconds": merge_seconds, "records": merged.written},
        "changed_pass": {
            "seconds": changed_seconds,
            "evaluated": changed.evaluated,
            "ledger_rows": len(changed.outcomes),
            "intents": len(changed.operation_ids),
        },
        "idle_pass": {"seconds": idle_seconds, "evaluated": idle.evaluated},
    }


def main() -> None:
    """Measure on a private server and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=100_000)
    parser.add_argument("--segments", type=int, default=4)
    parser.add_argument("--change-every", type=int, default=100, help="every how manieth topic changes")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        server = EmbeddedPostgres(Path(directory), settings=DURABLE)
        try:
            server.start()
            url = server.create_database("bench")
            figures = measure(url, options.topics, options.segments, options.change_every)
        finally:
            server.destroy()
    print(json.dumps({"benchmark": "fleet_pass", "machine": machine(), **figures}))


if __name__ == "__main__":
    main()
