"""Workers as real processes on a database of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from controller.bootstrap import Application
from controller.devstack.postgres import PostgresServer
from controller.devstack.process import ChildProcess
from controller.settings import Settings
from controller.store import leases
from controller.store.postgres.engine import Store
from tests.support.bench import Bench
from tests.support.cleave_process import cleave_process
from tests.support.older_journal import Backups
from tests.support.waiting import wait_until

StartWorker = Callable[..., ChildProcess]


@pytest.fixture
def bench(database: str) -> Iterator[Bench]:
    """Store, plane and shorthands on the test's database."""
    bench = Bench(database)
    yield bench
    bench.close()


@pytest.fixture
def backups(bench: Bench, postgres_server: PostgresServer) -> Iterator[Backups]:
    """Copies of the bench's journal, dropped at the end."""
    backups = Backups(postgres_server, bench, [])
    yield backups
    bench.store.dispose()
    backups.remove()


@pytest.fixture
def cleave(database: str) -> Iterator[Application]:
    """The application as an entry point has it."""
    app = Application(Settings(database_url=database), Store(database))  # type: ignore[arg-type]
    yield app
    app.close()


@pytest.fixture
def start_worker(database: str, bench: Bench, tmp_path: Path) -> Iterator[StartWorker]:
    """Start `cleave worker --name NAME`, settings given in lower case; back once it holds its leases."""
    started: list[ChildProcess] = []

    def start(name: str, **settings: object) -> ChildProcess:
        log = tmp_path / f"{name}.log"
        worker = cleave_process("worker", "--name", name, log=log, **settings, database_url=database)
        worker.start()
        started.append(worker)
        wait_until(lambda: held_by(bench, name), message=f"worker {name} holds shards")
        return worker

    yield start
    for worker in started:
        worker.stop()


def held_by(bench: Bench, name: str) -> set[str]:
    """Shard leases that are live and held by the worker."""
    with bench.store.transaction() as tx:
        return {lease.name for lease in leases.live_leases(tx, "shard/") if lease.holder == name}
