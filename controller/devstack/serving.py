"""A worker, or only the part of it that serves consumers, in this process on a free port: for tests and benchmarks.

Real leases, leader, layout feed and server on a real database; what it is not is a process of its own.
"""

from __future__ import annotations

import secrets
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from controller.bootstrap import application, build_worker
from controller.client.servers import Servers
from controller.devstack.failure import DevstackFailed
from controller.services.worker.worker import Worker
from controller.settings import Settings
from controller.web import access
from controller.web.access import Role
from controller.web.server import WebServer

SECRET = secrets.token_hex(32)
"""Of every worker that this process runs."""
_READY_SECONDS = 30.0
_LEAVES_WITHIN_SECONDS = 30.0


@dataclass
class ServingWorker:
    """A worker that serves consumers, running in threads of this process."""

    worker: Worker
    address: str
    thread: threading.Thread

    def stop(self) -> None:
        """As on SIGTERM; returns when it has left. Raises DevstackFailed, with where it is, if it does not leave."""
        self.worker.stop()
        self.thread.join(_LEAVES_WITHIN_SECONDS)
        if self.thread.is_alive():
            frame = sys._current_frames().get(self.thread.ident or 0)
            where = "".join(traceback.format_stack(frame)) if frame else "nowhere"
            raise DevstackFailed(
                f"the worker has not left within {_LEAVES_WITHIN_SECONDS:g} s; it is at\n{where}"
            )


def token_for(*topics: str, life_seconds: float = 24 * 3600.0) -> str:
    """A client's token for topics, all of them where none is named."""
    return access.sign(SECRET, topics or ("topic://*",), life_seconds)


def token_of(role: Role, *namespaces: str, subject: str | None = None) -> str:
    """A token of another role than a client's."""
    return access.sign(SECRET, (), 24 * 3600.0, role=role, namespaces=namespaces, subject=subject)


def client_of(*addresses: str, topics: tuple[str, ...] = ()) -> Servers:
    """A client that may consume these topics."""
    return Servers(addresses, token_for(*topics), call_timeout_seconds=10.0)


@contextmanager
def serving_leader(database: str, **settings: object) -> Iterator[str]:
    """Leases, leader and server without the worker's loop: layouts change only by other's acts. Yields the address."""
    given = _settings(database, settings)
    with application(given) as app:
        web = WebServer(given, SECRET)
        worker = build_worker(app, served=web)
        worker.leases.round()
        parts = [threading.Thread(target=worker.leases.run, args=(lambda: None,), name="leases")]
        parts += [threading.Thread(target=one.run, name=type(one).__name__) for one in worker.beside]
        for part in parts:
            part.start()
        try:
            yield web.address
        finally:
            with ExitStack() as ends:  # whatever one of them raises
                ends.callback(worker.leases.stop)
                for one in worker.beside:
                    ends.callback(one.stop)
            for part in parts:
                part.join()
            worker.leases.resign()
            worker.listener.close()


@contextmanager
def serving_worker(database: str, **settings: object) -> Iterator[ServingWorker]:
    """One worker; it has taken its shards when this is entered."""
    given = _settings(database, settings)
    with application(given) as app:
        web = WebServer(given, SECRET)
        worker = build_worker(app, served=web)
        thread = threading.Thread(target=worker.run, name="worker")
        thread.start()
        running = ServingWorker(worker, web.address, thread)
        try:
            deadline = time.monotonic() + _READY_SECONDS
            while not worker.leases.terms and time.monotonic() < deadline:
                time.sleep(0.02)
            if not worker.leases.terms:
                raise DevstackFailed(
                    f"the worker has taken no shard within {_READY_SECONDS:g} s; see its log"
                )
            yield running
        finally:
            running.stop()


def _settings(database: str, given: dict[str, object]) -> Settings:
    return Settings(
        database_url=database,
        api_secret=SECRET,
        **{"worker_lease_seconds": 5.0, "consumer_grace_seconds": 4.0, **given},  # type: ignore[arg-type]
    )
