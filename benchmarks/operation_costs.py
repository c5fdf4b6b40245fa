"""Costs of operations: processor time of the three parties, waits for the disk, transactions; and pgbench for comparison.

The benchmarks of operations, of a topic's history and of the reconciler use it.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass

import psutil
from sqlalchemy import make_url, text

from controller.bootstrap import Application
from controller.devstack.postgres_home import wheel_binaries


def pgbench(url: str, seconds: int, *, initialise: bool) -> float:
    """Return the TPC-B-like transactions per second of 2 clients. With `initialise`, create pgbench's tables first. Raises RuntimeError
    if pgbench prints no figure.
    """
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
    tps = re.search(r"tps = ([0-9.]+)", done.stdout)
    if tps is None:
        raise RuntimeError(f"pgbench printed no figure: {done.stdout}")
    return float(tps.group(1))


def processor_seconds(*processes: psutil.Process) -> float:
    """Return the processor seconds of these processes, their living descendants, and the ended ones that were waited for."""
    total = 0.0
    for process in processes:
        for member in (process, *process.children(recursive=True)):
            with contextlib.suppress(
                psutil.NoSuchProcess
            ):  # it ends just now, and is counted with its parent from now on
                total += sum(member.cpu_times()[:4])
    return total


@dataclass(frozen=True)
class Account:
    """Resources spent until an instant, in processor seconds and in counts."""

    submitting: float
    working: float
    serving: float
    machine: float
    flushes: int
    transactions: int

    @classmethod
    def now(cls, app: Application, worker_pid: int) -> Account:
        """Read all counters; the server's own counters may be a second old."""
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
        """Return the resources spent since `earlier` per operation; for the machine, the processor time of other programs."""
        own = {
            party: getattr(self, party) - getattr(earlier, party)
            for party in ("submitting", "working", "serving")
        }
        other_programs = self.machine - earlier.machine - sum(own.values())
        return {
            **{f"{party}_processor_ms": round(1000 * spent / operations, 2) for party, spent in own.items()},
            "others_processor_ms": round(1000 * max(other_programs, 0.0) / operations, 2),
            "flushes": round((self.flushes - earlier.flushes) / operations, 2),
            "transactions": round((self.transactions - earlier.transactions) / operations, 2),
        }


@dataclass(frozen=True)
class Meter:
    """Processor time of this process and of the server."""

    server: psutil.Process

    @classmethod
    def of(cls, app: Application) -> Meter:
        """Return the meter of the server to which the application is connected. Raises RuntimeError if the server runs on another
        machine.
        """
        with app.store.transaction() as tx:
            backend = psutil.Process(tx.execute(text("SELECT pg_backend_pid()")).scalar_one())
        server = backend.parent()
        if server is None:
            raise RuntimeError("the server of the benchmark runs on another machine")
        return cls(server)

    def milliseconds(self, act: Callable[[], None], times: int) -> float:
        """Call `act` `times` times, and return the mean processor milliseconds of one call."""
        before = self._seconds()
        for _ in range(times):
            act()
        return (self._seconds() - before) / times * 1000

    def _seconds(self) -> float:
        own = sum(psutil.Process().cpu_times()[:2])
        return own + processor_seconds(self.server)
