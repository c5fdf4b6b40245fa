"""Measures the cost of an operation and a read on a topic that was reshaped ten thousand times, compared with a young topic.

Topics of 8 to 24 active segments; splits and merges follow one another, requested one at a time and run by this process on the embedded
data plane. The subscription keeps up: each sealed segment is marked as drained. One run prunes nothing; another one, on a database of its
own, collects garbage at retention 0. At each age the old topic and a fresh one take turns, because machines are not equally fast from
minute to minute; the ratio is the result. Measured are an operation, a decision with its evaluation input, a producer's read of the
topic, and the leader's read of the segments of a subscription, in processor milliseconds of this process and of the server. Prints one
line of JSON.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from sqlalchemy import text

from benchmarks.bench_operations import application
from benchmarks.machine import machine
from benchmarks.operation_costs import Meter
from controller import telemetry
from controller.bootstrap import Application
from controller.devstack.postgres import DURABLE, EmbeddedPostgres
from controller.domain.evaluator import ALL_LANES, decide
from controller.domain.operation import Origin
from controller.domain.segment import Segment
from controller.postgres_source import PostgresSource
from controller.services import garbage_collector, segment_admin, subscription_admin, topic_admin
from controller.services.operation_runner import RunnerContext, run_operation
from controller.services.segment_admin import Planner
from controller.store.decisions import evaluation_inputs
from controller.store.journal import reshape_intents
from controller.store.journal.operations import Request
from controller.store.journal.request_keys import Intent
from controller.store.postgres.migrations import migrate
from controller.store.topics import drains
from controller.store.topics.readable_segments import to_read

FEWEST, MOST = 8, 24
AGES = (1000, 4000, 10000)
"""Operations that the old topic has had when it is compared."""
YOUTH = 50
TURNS, OPERATIONS_A_TURN, LOOKS_A_TURN = 10, 40, 200
COLLECT_EVERY = 100
GOAL = 1.1
SUBSCRIPTION = "s"


@dataclass
class Life:
    """One topic and all actions on it. `asked` is the number of operations so far."""

    app: Application
    source: PostgresSource
    name: str
    prunes: bool
    rng: random.Random = field(default_factory=lambda: random.Random(7))
    asked: int = 0
    topic_id: int = 0

    def begin(self) -> None:
        """Create the topic with its subscription."""
        request = self._request()
        created = topic_admin.create_topic(
            self.app.store, self.app.planes, self.name, request, segments=FEWEST
        )
        self.topic_id = self._run(created)
        self._run(
            subscription_admin.create_subscription(self.app.store, self.name, SUBSCRIPTION, self._request())
        )

    def reshape(self) -> None:
        """Perform one operation from the request to its end, and mark its parents as drained. If the topic prunes, collect garbage every
        COLLECT_EVERY operations.
        """
        with self.app.store.single_statement() as tx:
            view = reshape_intents.look(tx, self.name)
        planner, parents = self._plan(view.layout.active)
        self._run(segment_admin.submit(self.app.store, self.app.planes, self.name, planner, self._request()))
        with self.app.store.transaction() as tx:
            drains.mark_drained(tx, self.topic_id, SUBSCRIPTION, parents)
        if self.prunes and self.asked % COLLECT_EVERY == 0:
            collection = garbage_collector.collect(self.app.store, self.app.planes, retention_minutes=0)
            for operation_id in collection.operation_ids:
                run_operation(self._context, operation_id)

    def decide(self) -> None:
        """Evaluate the topic once, as a pass of the auto-scaler does for a topic without an action."""
        planes = {name: plane.capabilities for name, plane in self.app.planes.items()}
        with self.app.store.transaction() as tx:
            inputs = evaluation_inputs.load_evaluation_inputs(tx, [self.topic_id], planes)
        decide(inputs[self.topic_id], ALL_LANES)

    def look_for_consumers(self) -> None:
        """Read the segments that a leader reads when it assigns buckets."""
        with self.app.store.transaction() as tx:
            to_read(tx, self.topic_id, SUBSCRIPTION)

    def present_segments(self) -> int:
        """Return the number of segments that are not pruned."""
        with self.app.store.transaction() as tx:
            counting = text(
                "SELECT count(*) FROM cleave.segment WHERE topic_id = :topic_id AND pruned_epoch IS NULL"
            )
            return int(tx.execute(counting, {"topic_id": self.topic_id}).scalar_one())

    @property
    def _context(self) -> RunnerContext:
        return RunnerContext(store=self.app.store, planes=self.app.planes, runner_id="benchmark")

    def _run(self, intent: Intent) -> int:
        run_operation(self._context, intent.operation.operation_id)
        return intent.operation.topic_id

    def _request(self) -> Request:
        self.asked += 1
        return Request(f"{self.name}-{self.asked}", Origin.MANUAL, "benchmark", "benchmark")

    def _plan(self, active: tuple[Segment, ...]) -> tuple[Planner, list[int]]:
        if len(active) <= FEWEST or (len(active) < MOST and self.rng.random() < 0.5):
            chosen = self.rng.choice(
                [segment for segment in active if segment.hash_range.width > 1]
            ).segment_id
            return segment_admin.splitting(chosen), [chosen]
        index = self.rng.randrange(len(active) - 1)
        pair = [active[index].segment_id, active[index + 1].segment_id]
        return segment_admin.merging(*pair), pair


def acts(life: Life) -> dict[str, tuple[Callable[[], None], int]]:
    """Return the compared actions by name, each with its number of repetitions in a turn."""
    return {
        "operation": (life.reshape, OPERATIONS_A_TURN),
        "decision": (life.decide, LOOKS_A_TURN),
        "producers_look": (lambda: _ignore(life.source.topic(life.name)), LOOKS_A_TURN),
        "consumers_look": (life.look_for_consumers, LOOKS_A_TURN),
    }


def compare(old: Life, young: Life, meter: Meter) -> dict[str, dict[str, float]]:
    """Measure both topics, turn by turn, and return the figures of each action."""
    by_action: dict[str, dict[str, float]] = {}
    for act, (of_old, times) in acts(old).items():
        of_young, _ = acts(young)[act]
        pairs = [
            (meter.milliseconds(of_old, times), meter.milliseconds(of_young, times)) for _ in range(TURNS)
        ]
        old_ms, young_ms = (fmean(pair[i] for pair in pairs) for i in (0, 1))
        by_action[act] = {
            "old_ms": round(old_ms, 2),
            "young_ms": round(young_ms, 2),
            "ratio": round(old_ms / young_ms, 3),
        }
    return by_action


def _ignore(_found: object) -> None:
    """Discard the result; only the cost of the read is measured."""


def measure(url: str, prunes: bool, ages: Sequence[int]) -> dict[str, dict[str, dict[str, float]]]:
    """Reshape one topic up to each of `ages` operations, and compare it with a young one. Return the figures by age and action."""
    migrate(url)
    figures: dict[str, dict[str, dict[str, float]]] = {}
    with application(url) as app, closing(PostgresSource(url)) as source:
        meter = Meter.of(app)
        old = Life(app, source, "topic://bench/history/old", prunes)
        old.begin()
        for age in ages:
            while old.asked < age:
                old.reshape()
            young = Life(app, source, f"topic://bench/history/beside-{age}", prunes)
            young.begin()
            for _ in range(YOUTH):
                young.reshape()
            present = old.present_segments()
            figures[f"{age} operations, {present} segments"] = compare(old, young, meter)
    return figures


def main() -> None:
    """Measure on a private server and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ages", type=int, nargs="+", default=AGES)
    options = parser.parse_args()
    telemetry.configure_logging(level=logging.WARNING)
    figures: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as directory:
        server = EmbeddedPostgres(Path(directory), settings=DURABLE)
        try:
            server.start()
            for way, prunes in (("nothing_pruned", False), ("pruned", True)):
                figures[way] = measure(server.create_database(way), prunes, options.ages)
        finally:
            server.destroy()
    print(json.dumps({"benchmark": "history", "machine": machine(), "goal_ratio": GOAL, **figures}))


if __name__ == "__main__":
    main()
