"""A worker whose PostgreSQL is away when it starts: it says so, waits, begins when the server is there, and can leave."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import make_url

from controller.devstack.ports import free_port, release_port
from controller.devstack.process import ChildProcess
from controller.settings import PROJECT_ROOT
from tests.integration.entrypoints.conftest import held_by
from tests.support.bench import Bench
from tests.support.relay import Relay
from tests.support.waiting import wait_until


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port of loopback that nobody listens on."""
    port = free_port()
    yield port
    release_port(port)


@contextmanager
def waiting_worker(database: str, port: int, log: Path) -> Iterator[ChildProcess]:
    """A worker sent to that port, once it has said that it waits."""
    url = make_url(database).set(host="127.0.0.1", port=port).render_as_string(hide_password=False)
    env = {key: value for key, value in os.environ.items() if not key.startswith("CLEAVE_")}
    worker = ChildProcess(
        [sys.executable, "-m", "controller.entrypoints.cli", "worker", "--name", "early"],
        log=log,
        cwd=PROJECT_ROOT,
        env={**env, "CLEAVE_DATABASE_URL": url},
    )
    worker.start()
    try:
        wait_until(
            lambda: "the worker waits to begin" in log.read_text() or not worker.running, message="it says so"
        )
        assert "PostgreSQL is away" in log.read_text()
        assert worker.running
        yield worker
    finally:
        worker.stop()


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
