"""A worker whose PostgreSQL is away when it starts: it says so, waits, begins when the server is there, and can leave."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import make_url, text

from controller.devstack.ports import free_port, release_port
from controller.devstack.process import ChildProcess
from controller.store import leases
from controller.store.postgres.engine import Store
from controller.store.postgres.migrations import migrate
from tests.integration.conftest import held_by
from tests.support.bench import Bench
from tests.support.cleave_process import cleave_process
from tests.support.relay import Relay
from tests.support.waiting import wait_until


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port of loopback that nobody listens on."""
    port = free_port()
    yield port
    release_port(port)


@contextmanager
def waiting_worker(
    database: str, port: int | None, log: Path, why: str = "PostgreSQL is unreachable"
) -> Iterator[ChildProcess]:
    """A worker sent to that port, or to the database's own, once it has said that it waits, and for what."""
    there = make_url(database)
    url = there.set(host="127.0.0.1", port=port or there.port).render_as_string(hide_password=False)
    worker = cleave_process("worker", "--name", "early", log=log, database_url=url)
    worker.start()
    try:
        wait_until(
            lambda: "worker cannot start yet" in log.read_text() or not worker.running, message="it says so"
        )
        assert why in log.read_text()
        assert worker.running
        yield worker
    finally:
        worker.stop()


@pytest.mark.parametrize(
    ("program", "word"),
    [("newer", "0.1.0 and"), ("older", "9999_of_the_future was applied by a newer version")],
)
def test_it_waits_for_a_schema_of_its_own_version(
    empty_database: str, tmp_path: Path, program: str, word: str
) -> None:
    log = tmp_path / "log"
    store = Store(empty_database)
    if program == "older":
        migrate(empty_database)
        execute(store, "INSERT INTO cleave.migration (name, checksum) VALUES ('9999_of_the_future', '')")
    with waiting_worker(empty_database, None, log, word):
        if program == "older":
            execute(store, "DELETE FROM cleave.migration WHERE name = '9999_of_the_future'")
        else:
            migrate(empty_database)
        wait_until(lambda: holders(store) == {"early"}, message="it holds shards")
        assert log.read_text().count("worker cannot start yet") == 1
        assert "Traceback" not in log.read_text()
    store.dispose()


def execute(store: Store, statement: str) -> None:
    with store.transaction() as tx:
        tx.execute(text(statement))


def holders(store: Store) -> set[str]:
    with store.transaction() as tx:
        return {lease.holder for lease in leases.live_leases(tx, "shard/")}


def test_it_begins_when_the_server_is_there(
    bench: Bench, database: str, closed_port: int, tmp_path: Path
) -> None:
    server = make_url(database)
    with waiting_worker(database, closed_port, tmp_path / "log") as worker:
        with Relay(str(server.host), server.port or 5432, listen_port=closed_port):
            wait_until(lambda: held_by(bench, "early"), message="it holds shards")
            worker.stop()
        assert "Traceback" not in (tmp_path / "log").read_text()


def test_it_leaves_when_told_to_while_it_waits(database: str, closed_port: int, tmp_path: Path) -> None:
    with waiting_worker(database, closed_port, tmp_path / "log") as worker:
        os.kill(worker.pid, signal.SIGTERM)
        wait_until(lambda: not worker.running, message="it has left")
        assert "Traceback" not in (tmp_path / "log").read_text()
