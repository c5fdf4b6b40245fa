"""Measures the cost of reconciling the metadata with the data plane, per topic, and the number of topics that fit into a maintenance
period.

Topics of several segments with a subscription, one in ten of them split once, on the embedded data plane; the logs match the metadata, as
they do nearly always. The run is that of maintenance: pages of topics, read together. Processor time of this process and of the server is
added up as if both shared one core. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
from pathlib import Path

from benchmarks.bench_operations import application
from benchmarks.machine import machine
from benchmarks.operation_costs import Meter
from controller import telemetry
from controller.bootstrap import Application
from controller.devstack.postgres import DURABLE, EmbeddedPostgres
from controller.domain.operation import Origin
from controller.services import segment_admin, subscription_admin, topic_admin
from controller.services.operation_runner import RunnerContext, run_due
from controller.services.reconciler import reconcile_topics
from controller.store.journal.operations import Request
from controller.store.postgres.migrations import migrate

SEGMENTS = 4
PERIOD_SECONDS = 900
GOAL_TOPICS = 100_000
_AT_ONCE = 500
"""Topics whose operations are requested before they are run, so that all run before their deadline."""


def make_topics(app: Application, first: int, last: int) -> None:
    """Create the topics with the numbers `first` to `last` - 1, and split every tenth. Returns when all operations have ended."""
    runner = RunnerContext(store=app.store, planes=app.planes, runner_id="benchmark")

    def finish() -> None:
        while run_due(runner):
            pass

    for start in range(first, last, _AT_ONCE):
        part = range(start, min(start + _AT_ONCE, last))
        for number in part:
            topic_admin.create_topic(
                app.store, app.planes, _name(number), _request(f"c{number}"), segments=SEGMENTS
            )
        finish()
        for number in part:
            subscription_admin.create_subscription(app.store, _name(number), "s", _request(f"s{number}"))
        finish()
        for number in part[::10]:
            planner = segment_admin.splitting(0)
            segment_admin.submit(app.store, app.planes, _name(number), planner, _request(f"r{number}"))
        finish()


def _name(number: int) -> str:
    return f"topic://bench/reconcile-{number % 10}/t{number}"


def _request(key: str) -> Request:
    return Request(key, Origin.MANUAL, "benchmark", "benchmark")


def reconcile_all(app: Application) -> None:
    """Reconcile every page of topics, as maintenance does. Raises RuntimeError if a log differs from the metadata."""
    after: int | None = 0
    while after is not None:
        findings, after = reconcile_topics(app.store, app.planes, after=after)
        if findings:
            raise RuntimeError(f"{len(findings)} differences, first {findings[0]}")


def measure(url: str, stages: list[int]) -> dict[str, object]:
    """Return the cost per topic at each of these numbers of topics."""
    migrate(url)
    by_size: dict[str, dict[str, float]] = {}
    made = 0
    with application(url) as app:
        meter = Meter.of(app)
        for topics in stages:
            make_topics(app, made, topics)
            made = topics
            total_ms = meter.milliseconds(lambda: reconcile_all(app), 2)
            a_topic_ms = total_ms / topics
            by_size[f"{topics} topics"] = {
                "processor_ms_a_topic": round(a_topic_ms, 3),
                "topics_a_period_on_one_core": round(PERIOD_SECONDS * 1000 / a_topic_ms),
            }
    return {"compared": by_size, "segments_a_topic": SEGMENTS, "period_seconds": PERIOD_SECONDS}


def main() -> None:
    """Measure on a private server and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, nargs="+", default=[1000, 4000])
    options = parser.parse_args()
    telemetry.configure_logging(level=logging.WARNING)
    with tempfile.TemporaryDirectory() as directory:
        server = EmbeddedPostgres(Path(directory), settings=DURABLE)
        try:
            server.start()
            figures = measure(server.create_database("bench"), options.topics)
        finally:
            server.destroy()
    print(
        json.dumps(
            {"benchmark": "reconcile", "machine": machine(), "goal_topics_a_period": GOAL_TOPICS, **figures}
        )
    )


if __name__ == "__main__":
    main()
