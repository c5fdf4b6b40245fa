"""Measures the time that maintenance takes to prune and delete sealed, drained segments: this program, and an older commit for
comparison.

.venv/bin/python -m benchmarks.bench_maintenance --against d0e7970b

Topics of one segment are split and merged in turns. Each segment gets a message, which its subscription acknowledges, so that every
sealed segment is drained. Then one round of the maintenance runs: reconcile, collect with retention 0, the prunes, the sweep, and after
the longest call the second sweep that closes the deletion entries; the wait in between does not count. 10,000 segments are on the
embedded logs, 500 on a broker. Each run has a database of its own on one server. The commits take turns, because machines are not equally
fast from minute to minute; `ratio` is of the medians, of processor time (this process and the database's server) and of elapsed time.
Without `--against` this program is measured alone. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import io
import json
import logging
import math
import os
import secrets
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.machine import machine
from benchmarks.operation_costs import Meter
from controller import telemetry
from controller.bootstrap import Application
from controller.dataplane.log_client import LogClient, OutgoingMessage
from controller.dataplane.pulsar.cluster_access import PulsarAccess
from controller.demo.planes import NAMESPACE, make_namespace
from controller.devstack.postgres import DURABLE, EmbeddedPostgres
from controller.devstack.pulsar.standalone import PulsarStandalone
from controller.domain.operation import Origin
from controller.services import (
    deletion_sweeper,
    garbage_collector,
    reconciler,
    segment_admin,
    subscription_admin,
    topic_admin,
)
from controller.services.operation_runner import run_due
from controller.settings import Settings
from controller.store.journal.operations import Request
from controller.store.postgres.engine import Store
from controller.store.postgres.migrations import migrate

ROOT = Path(__file__).resolve().parents[1]
SUBSCRIPTION = "s"
TURNS = 52
"""Reshapes of each topic: a split and a merge seal three segments."""
SEALED_A_TOPIC = TURNS // 2 * 3
GOAL = 1.2
TOGETHER = 64
Places = Mapping[str, str]
"""Settings of a data plane, by name."""


@contextmanager
def application(url: str, places: Places) -> Iterator[Application]:
    """Open Cleave on that database and data plane."""
    settings = Settings(database_url=url, **places)  # type: ignore[arg-type]
    with closing(Application(settings, Store(url, pool_size=8))) as app:
        yield app


def _request(key: str) -> Request:
    return Request(key, Origin.MANUAL, "benchmark", "benchmark", deadline_seconds=3600.0)


class Fleet:
    """Topics of one data plane whose segments are sealed one after the other, each drained."""

    def __init__(self, app: Application, plane: str, topics: int) -> None:
        self._app, self._plane = app, plane
        self._names = [f"topic://{NAMESPACE}/{secrets.token_hex(4)}" for _ in range(topics)]
        self._number = 0

    def make(self) -> None:
        """Create the topics with their subscription."""
        store, planes = self._app.store, self._app.planes
        for name in self._names:
            topic_admin.create_topic(store, planes, name, self._next(), segments=1, data_plane=self._plane)
        self._finish()
        for name in self._names:
            subscription_admin.create_subscription(store, name, SUBSCRIPTION, self._next())
        self._finish()

    def reshape(self) -> None:
        """Split and merge all topics for TURNS turns. The message of a segment is written and acknowledged before the segment is sealed."""
        with closing(self._app.log_client(self._plane)) as logs:
            for turn in range(TURNS):
                first = turn // 2 * 3
                is_split = turn % 2 == 0
                for name in self._names:
                    for log in self._logs(name, (first,) if is_split else (first + 1, first + 2)):
                        self._use(logs, log)
                    planner = (
                        segment_admin.splitting(first)
                        if is_split
                        else segment_admin.merging(first + 1, first + 2)
                    )
                    segment_admin.submit(self._app.store, self._app.planes, name, planner, self._next())
                self._finish()

    def _logs(self, name: str, segment_ids: Sequence[int]) -> list[str]:
        ranges = ["0000-ffff"] if len(segment_ids) == 1 else ["0000-7fff", "8000-ffff"]
        plane = self._app.planes[self._plane]
        return [
            plane.backing_topic(name, f"{hash_range}-{number}")
            for hash_range, number in zip(ranges, segment_ids, strict=True)
        ]

    def _use(self, logs: LogClient, log: str) -> None:
        self._number += 1
        logs.append(log, [OutgoingMessage(b"payload", b"key")], producer="benchmark", sequence=self._number)
        self._app.planes[self._plane].skip_all(log, SUBSCRIPTION)

    def _next(self) -> Request:
        self._number += 1
        return _request(f"maintenance-{self._number}")

    def _finish(self) -> None:
        run_everything(self._app)


def run_everything(app: Application) -> None:
    """Run the operations that are due until none is."""
    runner = app.runner("benchmark")
    while run_due(runner, limit=TOGETHER):
        pass


def reconcile(app: Application) -> None:
    """Reconcile every topic. Raises RuntimeError if a log differs from the metadata."""
    after: int | None = 0
    while after is not None:
        findings, after = reconciler.reconcile_topics(app.store, app.planes, after=after)
        if findings:
            raise RuntimeError(f"{len(findings)} findings, first {findings[0]}")


def collect(app: Application) -> None:
    """Write the intents of all prunes that are due, and run them. Raises RuntimeError if a segment cannot be pruned."""
    after: int | None = 0
    while after is not None:
        report = garbage_collector.collect(app.store, app.planes, retention_minutes=0, after=after)
        if report.kept:
            raise RuntimeError(f"{len(report.kept)} segments are kept, first {report.kept[0]}")
        after = report.next_after
    run_everything(app)


def sweep(app: Application) -> int:
    """Process every deletion entry that is due, and return the number of logs that were absent. Raises RuntimeError if a deletion fails."""
    absent = 0
    while True:
        report = deletion_sweeper.sweep(app.store, app.planes)
        if report.failed:
            raise RuntimeError(f"{len(report.failed)} logs stay, first {next(iter(report.failed.items()))}")
        absent += len(report.absent)
        if not report.absent:
            return absent


def measure_one(url: str, plane: str, places: Places, segments: int) -> dict[str, float]:
    """Measure one run of the program that this process has imported. Return seconds by step, and processor seconds."""
    telemetry.configure_logging(level=logging.ERROR)
    with application(url, places) as app:
        fleet = Fleet(app, plane, math.ceil(segments / SEALED_A_TOPIC))
        fleet.make()
        fleet.reshape()
        meter, figures = Meter.of(app), {}
        parts: dict[str, Callable[[], object]] = {
            "reconcile": lambda: reconcile(app),
            "collect": lambda: collect(app),
            "sweep": lambda: sweep(app),
            "second_sweep": lambda: sweep(app),
        }
        processor_ms = 0.0
        for name, part in parts.items():
            if name == "second_sweep":
                time.sleep(app.planes[plane].call_timeout_seconds + 1.0)
            began = time.perf_counter()
            processor_ms += meter.milliseconds(lambda part=part: part(), 1)  # type: ignore[misc]
            figures[f"{name}_seconds"] = round(time.perf_counter() - began, 2)
        figures["total_seconds"] = round(sum(figures.values()), 2)
        figures["processor_seconds"] = round(processor_ms / 1000, 2)
        return figures


def run_one(
    tree: Path, server: EmbeddedPostgres, plane: str, places: Places, segments: int
) -> dict[str, float]:
    """Run the program in `tree` once, as a process on a new database, which that program migrates. Return its figures."""
    name = f"maintenance_{secrets.token_hex(4)}"
    request = json.dumps([server.create_database(name), plane, dict(places), segments])
    done = subprocess.run(
        [sys.executable, __file__, "--one", request],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
    )
    server.drop_database(name)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def extract(commit: str, directory: Path) -> Path:
    """Write the tree of that commit into `directory`, and return the directory. Raises RuntimeError without git."""
    git = shutil.which("git")
    if git is None:
        raise RuntimeError("git is not installed; without it no older commit can be measured")
    packed = subprocess.run([git, "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(directory, filter="data")
    return directory


def in_turns(
    trees: Mapping[str, Path],
    server: EmbeddedPostgres,
    plane: str,
    places: Places,
    segments: int,
    rounds: int,
) -> dict[str, Any]:
    """Return the medians of the programs' figures on one data plane."""
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in trees}
    for number in range(rounds):
        for name in [*trees] if number % 2 == 0 else [*trees][::-1]:
            runs[name].append(run_one(trees[name], server, plane, places, segments))
            print(f"{plane}, {name}: {runs[name][-1]}", file=sys.stderr, flush=True)
    return {
        name: {
            figure: round(median(run_figures[figure] for run_figures in figures_of_runs), 2)
            for figure in figures_of_runs[0]
        }
        for name, figures_of_runs in runs.items()
    }


def measure(options: argparse.Namespace, directory: Path, running: ExitStack) -> dict[str, Any]:
    """Measure each requested data plane; with an older commit, also return the ratios."""
    trees = {"this program": ROOT}
    if options.against:
        trees[options.against] = extract(options.against, directory / "older")
    server = EmbeddedPostgres(directory / "postgres", settings=DURABLE)
    running.callback(server.destroy)
    server.start()
    by_plane: dict[str, Any] = {}
    if options.segments:
        by_plane["embedded"] = in_turns(trees, server, "embedded", {}, options.segments, options.rounds)
    if options.broker_segments:
        broker = PulsarStandalone(directory / "pulsar")
        running.callback(broker.destroy)
        broker.start()
        make_namespace(PulsarAccess(admin_url=broker.admin_url, service_url=broker.service_url))
        places = {"pulsar_admin_url": broker.admin_url, "pulsar_service_url": broker.service_url}
        by_plane["pulsar"] = in_turns(
            trees, server, "pulsar", places, options.broker_segments, options.rounds
        )
    if options.against:
        by_plane["ratio"] = {
            plane: {
                part: round(figures["this program"][part] / figures[options.against][part], 2)
                for part in ("processor_seconds", "total_seconds")
            }
            for plane, figures in by_plane.items()
        }
    return by_plane


def main() -> None:
    """Measure on private servers and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", default="", help="an older commit to measure in turns")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--segments", type=int, default=10_000, help="on the embedded logs; 0 for none")
    parser.add_argument("--broker-segments", type=int, default=500, help="on a broker; 0 for none")
    parser.add_argument("--one", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        url, plane, places, segments = json.loads(options.one)
        migrate(url)
        print(json.dumps(measure_one(url, plane, places, segments)))
        return
    with tempfile.TemporaryDirectory() as directory, ExitStack() as running:
        figures = measure(options, Path(directory), running)
    print(
        json.dumps(
            {
                "benchmark": "maintenance",
                "machine": machine(),
                "against": options.against,
                "goal_ratio": GOAL,
                "sealed_segments": {"embedded": options.segments, "pulsar": options.broker_segments},
                **figures,
            }
        )
    )


if __name__ == "__main__":
    main()
