"""How many splits and merges a second one worker commits, against pgbench's TPC-B-like on the same server.

Each operation is the whole thing: intent, children with subscriptions, fence, the commit with journal, history and
ledger linkage, clean-up, on the embedded data plane. The worker is a process of its own, as `cleave worker` is; this
one submits the intents, in turns. pgbench runs with 2 clients before and after; the ratio is to
the better of the two. Beside it stands where the time of one operation goes: processor time of the three parties,
waits for the disk, transactions; and how busy the machine was with other things. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from sqlalchemy import make_url, text

from benchmarks.machine import machine
from controller.bootstrap import Application
from controller.devstack.postgres import DURABLE, EmbeddedPostgres
from controller.devstack.postgres_home import wheel_binaries
from controller.domain.operation import Origin
from controller.services import segment_admin, topic_admin
from controller.settings import Settings
from controller.store.engine import Store
from controller.store.intents import Request
from controller.store.migrations import migrate


def pgbench(url: str, seconds: int, *, initialise: bool) -> float:
    """TPC-B-like transactions a second with 2 clients."""
    address = make_url(url)
    env = {**os.environ, "PGPASSWORD": address.password or ""}
    base = [
        str(wheel_binaries() / "pgbench"),
        "-h",
        str(address.host),
        "-p",
        str(address.port),
        "-U",
        str(address.username),
    ]
    if initialise:
        subprocess.run(
            [*base, "-i", "-q", "-s", "10", str(address.database)], env=env, check=True, capture_output=True
        )
    done = subprocess.run(
        [*base, "-c", "2", "-j", "2", "-T", str(seconds), str(address.database)],
        env=env,
        check=True,
        capture_output=True,
        text=True,
    )
    found = re.search(r"tps = ([0-9.]+)", done.stdout)
    if found is None:
        raise RuntimeError(f"pgbench printed no figure: {done.stdout}")
    return float(found.group(1))


@contextmanager
def application(url: str) -> Iterator[Application]:
    """Cleave on that database."""
    with closing(Application(Settings(database_url=url), Store(url, pool_size=8))) as app:
        yield app


@contextmanager
def worker(url: str, parallel: int) -> Iterator[int]:
    """`cleave worker` on that database; it takes its shards while the topics are made."""
    env = {**os.environ, "CLEAVE_DATABASE_URL": url, "CLEAVE_WORKER_PARALLEL_OPERATIONS": str(parallel)}
    command = [sys.executable, "-c", "from controller.entrypoints.cli import main; main()", "worker"]
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process.pid
    finally:
        process.terminate()
        process.wait(timeout=60)


def _request(key: str) -> Request:
    return Request(key, Origin.MANUAL, "benchmark", "benchmark")


def processor_seconds(*processes: psutil.Process) -> float:
    """Of these and of their children, those that have ended included."""
    total = 0.0
    for process in processes:
        times = process.cpu_times()
        total += times.user + times.system + times.children_user + times.children_system
        total += sum(sum(child.cpu_times()[:2]) for child in process.children(recursive=True))
    return total


@dataclass(frozen=True)
class Account:
    """What was spent until an instant, in seconds of processors and in counts."""

    submitting: float
    working: float
    serving: float
    machine: float
    flushes: int
    transactions: int

    @classmethod
    def now(cls, app: Application, worker_pid: int) -> Account:
        """Read all of it; the server's own counters may be a second old."""
        with app.store.transaction() as tx:
            server = psutil.Process(tx.execute(text("SELECT pg_backend_pid()")).scalar_one()).parent()
            flushes = tx.execute(
                text("SELECT CAST(sum(fsyncs) AS bigint) FROM pg_stat_io WHERE object = 'wal'")
            ).scalar_one()
            transactions = tx.execute(
                text("SELECT CAST(sum(xact_commit) AS bigint) FROM pg_stat_database")
            ).scalar_one()
        busy = psutil.cpu_times()
        return cls(
            submitting=processor_seconds(psutil.Process()) - processor_seconds(*psutil.Process().children()),
            working=processor_seconds(psutil.Process(worker_pid)),
            serving=processor_seconds(server) if server else 0.0,
            machine=sum(busy) - busy.idle - busy.iowait,
            flushes=flushes,
            transactions=transactions,
        )

    def spent_since(self, earlier: Account, operations: int) -> dict[str, float]:
        """An operation's share of what was spent in between; for the machine what others took."""
        ours = {
            party: getattr(self, party) - getattr(earlier, party)
            for party in ("submitting", "working", "serving")
        }
        others = self.machine - earlier.machine - sum(ours.values())
        return {
            **{f"{party}_processor_ms": round(1000 * spent / operations, 2) for party, spent in ours.items()},
            "others_processor_ms": round(1000 * max(others, 0.0) / operations, 2),
            "flushes": round((self.flushes - earlier.flushes) / operations, 2),
            "transactions": round((self.transactions - earlier.transactions) / operations, 2),
        }


def churn(
    app: Application, topics: int, seconds: float, account: Callable[[], Account]
) -> tuple[int, float, dict[str, float]]:
    """Split and merge `topics` topics over and over; operations done, the seconds they took, what each cost."""
    for number in range(topics):
        topic_admin.create_topic(
            app.store, app.planes, f"topic://bench/ops/t{number}", _request(f"c{number}")
        )
    _wait_idle(app)
    for number in range(topics):
        topic_admin.create_subscription(
            app.store, f"topic://bench/ops/t{number}", "s", _request(f"s{number}")
        )
    _wait_idle(app)
    done, turn, next_id = 0, 0, [0] * topics
    before, started, submitting_seconds = account(), time.perf_counter(), 0.0
    while time.perf_counter() - started < seconds:
        for number in range(topics):
            first = next_id[number]
            planner = (
                segment_admin.splitting(first) if turn % 2 == 0 else segment_admin.merging(first, first + 1)
            )
            asked = time.perf_counter()
            segment_admin.submit(
                app.store, app.planes, f"topic://bench/ops/t{number}", planner, _request(f"{turn}-{number}")
            )
            submitting_seconds += time.perf_counter() - asked
            next_id[number] += 1 if turn % 2 == 0 else 2
        _wait_idle(app)
        done, turn = done + topics, turn + 1
    took = time.perf_counter() - started
    costs = account().spent_since(before, done)
    return (
        done,
        took,
        {
            "elapsed_ms": round(1000 * took / done, 2),
            "submit_ms": round(1000 * submitting_seconds / done, 2),
            **costs,
        },
    )


def _wait_idle(app: Application) -> None:
    """Looks by the cheapest statement there is, so that waiting takes little from what is measured."""
    live = text("SELECT EXISTS (SELECT FROM cleave.operation WHERE state NOT IN ('done', 'aborted'))")
    while True:
        with app.store.single_statement() as tx:
            if not tx.execute(live).scalar_one():
                return
        time.sleep(0.01)


def measure(url: str, seconds: int, topics: int, parallel: int) -> dict[str, object]:
    """Both figures and their ratio."""
    before = pgbench(url, seconds, initialise=True)
    migrate(url)
    with application(url) as app, worker(url, parallel) as worker_pid:
        done, took, costs = churn(app, topics, float(seconds), lambda: Account.now(app, worker_pid))
    after = pgbench(url, seconds, initialise=False)
    rate, rival = done / took, max(before, after)
    return {
        "operations_per_second": round(rate, 1),
        "operations": done,
        "parallel_operations": parallel,
        "pgbench_tps": [round(before), round(after)],
        "ratio": round(rate / rival, 3),
        "goal": 0.2,
        "of_one_operation": costs,
    }


def main() -> None:
    """Measure on a private server and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=15)
    parser.add_argument("--topics", type=int, default=50)
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
