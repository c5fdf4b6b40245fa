"""Measures the splits and merges that one worker commits per second, compared with pgbench's TPC-B-like transactions on the same server.

Each operation is complete: intent, children with subscriptions, fence, the commit with journal and history, clean-up, on the embedded
data plane. The worker is a separate process, like `cleave worker`; this process requests operations as the auto-scaler does, as many in a
transaction as its passes and with a row in the decision log for each, and then, for comparison, one at a time as people do. pgbench's 2
clients take turns with them, several times, because machines are not equally fast from minute to minute; the ratio is of the means.
Further figures: the processor time of the three parties for one operation, waits for the disk, transactions, and the machine's load by
other programs. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from sqlalchemy import text

from benchmarks.machine import machine
from benchmarks.operation_costs import Account, pgbench
from controller.bootstrap import Application
from controller.dataplane.layout_keeper import naming
from controller.devstack.postgres import DURABLE, EmbeddedPostgres
from controller.domain.evaluator import ALL_LANES, code_version, decide
from controller.domain.operation import Origin
from controller.domain.policy import AutoScalePolicy
from controller.services import segment_admin, subscription_admin, topic_admin
from controller.services.autoscaler.batch import ACTING_TOPICS
from controller.services.segment_admin import Planner
from controller.settings import Settings
from controller.store.decisions import decision_log, evaluation_inputs
from controller.store.decisions.decision_log import EvaluationRecord
from controller.store.journal import reshape_intents
from controller.store.journal.operations import Request
from controller.store.journal.reshape_intents import ReshapeDraft
from controller.store.postgres.engine import Store
from controller.store.postgres.migrations import migrate

ROUNDS, ROUNDS_ONE_BY_ONE = 5, 1
HELD_SECONDS = 10.0
_UNWRITABLE = """
    SELECT o.topic_id, extract(epoch FROM o.committed_at - s.finished_at) * 1000
      FROM cleave.operation o JOIN cleave.operation_step s USING (operation_id)
     WHERE o.topic_id = ANY (:topic_ids) AND s.step = 'set-fencing'
"""
HELD_TOPICS = 6
Ask = Callable[[Sequence[int], int], None]
"""Have the topics of these numbers split in even turns, merged in odd ones."""


@contextmanager
def application(url: str) -> Iterator[Application]:
    """Open Cleave on that database."""
    with closing(Application(Settings(database_url=url), Store(url, pool_size=8))) as app:
        yield app


@contextmanager
def worker(url: str, parallel: int) -> Iterator[int]:
    """Run `cleave worker` on that database as a process until the end of the block, and yield its id; it acquires its shards while the
    topics are created.
    """
    env = {**os.environ, "CLEAVE_DATABASE_URL": url, "CLEAVE_WORKER_PARALLEL_OPERATIONS": str(parallel)}
    command = [
        sys.executable,
        "-c",
        "from controller.commands.cli import main; main()",
        "worker",
        "--no-collect",
    ]
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process.pid
    finally:
        process.terminate()
        process.wait(timeout=60)


def _request(key: str) -> Request:
    return Request(key, Origin.MANUAL, "benchmark", "benchmark")


def make_topics(app: Application, topics: int, kind: str = "t") -> list[int]:
    """Create `topics` topics with a subscription each, and return their ids."""
    topic_ids = [
        topic_admin.create_topic(
            app.store, app.planes, _name(number, kind), _request(f"c-{kind}{number}")
        ).operation.topic_id
        for number in range(topics)
    ]
    _wait_idle(app, topic_ids)
    for number in range(topics):
        subscription_admin.create_subscription(
            app.store, _name(number, kind), "s", _request(f"s-{kind}{number}")
        )
    _wait_idle(app, topic_ids)
    return topic_ids


def _planner(turn: int) -> Planner:
    """Return the planner of a turn: an even turn splits one segment into two, an odd one merges them again; each round uses three ids."""
    first = turn // 2 * 3
    return segment_admin.splitting(first) if turn % 2 == 0 else segment_admin.merging(first + 1, first + 2)


def ask_together(app: Application, topic_ids: Sequence[int]) -> Ask:
    """Return a function that requests operations in one transaction, as a pass of the auto-scaler does, with a row in the decision log
    for each.

    The rows hold an evaluation that is computed once, here. The function raises RuntimeError if another process has changed a topic.
    """
    max_buckets = AutoScalePolicy().entry_bucket_max_per_segment
    with app.store.transaction() as tx:
        capabilities = {"embedded": app.planes["embedded"].capabilities}
        inputs = evaluation_inputs.load_evaluation_inputs(tx, topic_ids, capabilities)
    rows = {
        topic_id: EvaluationRecord(
            decision_id=0,
            topic_id=topic_id,
            decided_at=situation.now,
            epoch=situation.layout.epoch,
            input_version=1,
            lanes=ALL_LANES,
            decided_by="benchmark",
            code_version=code_version(situation.policy),
            evaluation=decide(situation, ALL_LANES),
            situation=situation.to_json(),
        )
        for topic_id, situation in inputs.items()
    }

    def ask(numbers: Sequence[int], turn: int) -> None:
        planner = _planner(turn)
        with app.store.transaction() as tx:
            decision_ids = dict(zip(numbers, decision_log.reserve_ids(tx, len(numbers)), strict=True))
            requests = [
                replace(_request(f"together-{topic_ids[number]}-{turn}"), decision_id=decision_id)
                for number, decision_id in decision_ids.items()
            ]
            views = reshape_intents.look_at_many(
                tx, [topic_ids[n] for n in numbers], [request.request_key for request in requests]
            )
            drafts = [
                ReshapeDraft(view, planner(view.layout, max_buckets), request, naming(app.planes["embedded"]))
                for view, request in zip(views, requests, strict=True)
                if view is not None
            ]
            for draft in drafts:
                draft.demand_possible()
            if len(reshape_intents.write(tx, drafts)) < len(numbers):
                raise RuntimeError("a topic was changed by somebody else")
            decision_log.record(
                tx, [replace(rows[topic_ids[n]], decision_id=number) for n, number in decision_ids.items()]
            )

    return ask


def ask_one_by_one(app: Application) -> Ask:
    """Return a function that requests operations one at a time, as people do."""

    def ask(numbers: Sequence[int], turn: int) -> None:
        for number in numbers:
            request = _request(f"alone-{turn}-{number}")
            segment_admin.submit(app.store, app.planes, _name(number), _planner(turn), request)

    return ask


def churn(
    app: Application, topic_ids: Sequence[int], first_turn: int, seconds: float, ask: Ask
) -> tuple[int, int]:
    """Request operations on all topics, turn after turn, for at least `seconds` and an even number of turns. Return the numbers of turns
    and operations.

    Each group of ACTING_TOPICS topics waits for its operations before its next request.
    """
    numbers = range(len(topic_ids))
    groups = [numbers[first : first + ACTING_TOPICS] for first in numbers[::ACTING_TOPICS]]
    turns, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds or turns % 2:
        for group in groups:
            _wait_idle(app, [topic_ids[number] for number in group])
            ask(group, first_turn + turns)
        turns += 1
    _wait_idle(app, topic_ids)
    return turns, turns * len(topic_ids)


def _wait_idle(app: Application, topic_ids: Sequence[int]) -> None:
    """Wait until no operation of the topics is live, by polling with the cheapest statement, so that the wait takes little from the
    measured work.
    """
    live = text(
        "SELECT EXISTS (SELECT FROM cleave.operation"
        " WHERE finished_at IS NULL AND topic_id = ANY (:topic_ids))"
    )
    while True:
        with app.store.single_statement() as tx:
            if not tx.execute(live, {"topic_ids": list(topic_ids)}).scalar_one():
                return
        time.sleep(0.01)


def beside_a_held_row(app: Application, topic_ids: Sequence[int], ask: Ask) -> dict[str, int]:
    """Reshape all topics at once, while a transaction holds a row of the first topic for `HELD_SECONDS`.

    Return, in milliseconds, the time for which its range accepted no writes, and the longest time of the others, counted from the
    announcement of the fence, so never too short.
    """
    with app.store.transaction() as tx:
        tx.execute(
            text("SELECT FROM cleave.evaluation WHERE topic_id = :topic_id FOR UPDATE"),
            {"topic_id": topic_ids[0]},
        )
        ask(range(len(topic_ids)), 0)
        time.sleep(HELD_SECONDS)
    _wait_idle(app, topic_ids)
    with app.store.transaction() as tx:
        rows = tx.execute(text(_UNWRITABLE), {"topic_ids": list(topic_ids)}).all()
    unwritable_ms = {topic_id: round(milliseconds) for topic_id, milliseconds in rows}
    own_ms = unwritable_ms.pop(topic_ids[0])
    return {
        "row_held": round(HELD_SECONDS * 1000),
        "its_own": own_ms,
        "worst_of_the_others": max(unwritable_ms.values()),
    }


def _name(number: int, kind: str = "t") -> str:
    return f"topic://bench/ops/{kind}{number}"


def measure(url: str, seconds: int, topics: int, parallel: int) -> dict[str, object]:
    """Migrate the database, create topics, and measure operations that are requested together and one by one. Return the figures.

    pgbench runs before the first round and after each; the ratios compare with its mean. `seconds` is the length of each measurement.
    """
    rival = [pgbench(url, seconds, initialise=True)]
    migrate(url)
    counts, elapsed = [0, 0], [0.0, 0.0]
    costs: list[dict[str, float]] = []
    turn = 0
    with application(url) as app, worker(url, parallel) as worker_pid:
        topic_ids = make_topics(app, topics)
        held_ids = make_topics(app, HELD_TOPICS, "held")
        unwritable_ms = beside_a_held_row(app, held_ids, ask_together(app, held_ids))
        asks = (ask_together(app, topic_ids), ask_one_by_one(app))
        for number in range(ROUNDS):
            for way, ask in enumerate(asks if number < ROUNDS_ONE_BY_ONE else asks[:1]):
                account, started = Account.now(app, worker_pid), time.perf_counter()
                turns, done = churn(app, topic_ids, turn, float(seconds), ask)
                elapsed[way] += time.perf_counter() - started
                counts[way] += done
                turn += turns
                if number == 0:
                    costs.append(Account.now(app, worker_pid).spent_since(account, done))
            rival.append(pgbench(url, seconds, initialise=False))
    rates, tps = [done / took for done, took in zip(counts, elapsed, strict=True)], fmean(rival)
    return {
        "operations_per_second": round(rates[0], 1),
        "asked_for_at_once": ACTING_TOPICS,
        "topics": topics,
        "parallel_operations": parallel,
        "pgbench_tps": [round(tps_of_round) for tps_of_round in rival],
        "ratio": round(rates[0] / tps, 3),
        "goal": 0.2,
        "of_one_operation": costs[0],
        "unwritable_ms_beside_a_held_row": unwritable_ms,
        "asked_one_by_one": {
            "operations_per_second": round(rates[1], 1),
            "ratio": round(rates[1] / tps, 3),
            "of_one_operation": costs[1],
        },
    }


def main() -> None:
    """Measure on a private server and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--topics", type=int, default=6 * ACTING_TOPICS)
    parser.add_argument("--parallel", type=int, default=Settings().worker_parallel_operations)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        server = EmbeddedPostgres(Path(directory), settings=DURABLE)
        try:
            server.start()
            url = server.create_database("bench")
            figures = measure(url, options.seconds, options.topics, options.parallel)
        finally:
            server.destroy()
    print(json.dumps({"benchmark": "operations", "machine": machine(), **figures}))


if __name__ == "__main__":
    main()
