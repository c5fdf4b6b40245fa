"""A worker, or only its part that serves consumers, in this process on a free port: for tests and benchmarks.

It has real leases, leader, layout feed and server on a real database; it is only not a separate process.
"""

from __future__ import annotations

import secrets
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from controller.bootstrap import application, build_worker
from controller.client.servers import Servers
from controller.devstack.failure import DevstackFailed
from controller.devstack.process import wait_until
from controller.services.consumer_sessions.leader import SessionLeader
from controller.services.worker.worker import Worker
from controller.settings import Settings
from controller.web import access
from controller.web.access import Role
from controller.web.server import WebServer

SECRET = secrets.token_hex(32)
"""Secret of every worker that this process runs."""
_READY_SECONDS = 30.0
_STOP_SECONDS = 30.0


@dataclass
class ServingWorker:
    """A worker that serves consumers, running in threads of this process."""

    worker: Worker
    address: str
    thread: threading.Thread

    def stop(self) -> None:
        """Stop as on SIGTERM, and wait until the worker has ended. Raises DevstackFailed, with the worker's stack, if it does not end
        within 30 s.
        """
        self.worker.stop()
        self.thread.join(_STOP_SECONDS)
        if self.thread.is_alive():
            frame = sys._current_frames().get(self.thread.ident or 0)
            stack = "".join(traceback.format_stack(frame)) if frame else "nowhere"
            raise DevstackFailed(
                f"the worker has not ended within {_STOP_SECONDS:g} s; find the cause in its stack:\n{stack}"
            )


def token_for(*topics: str, life_seconds: float = 24 * 3600.0, subject: str | None = None) -> str:
    """Return a client's token for these topics, or for all topics if none is given, valid for `life_seconds`. `subject` is the name of
    the holder; None: the name of the role.
    """
    return access.sign(SECRET, topics or ("topic://*",), life_seconds, subject=subject)


def token_of(role: Role, *namespaces: str, subject: str | None = None) -> str:
    """Return a token of a role other than that of clients, for these namespaces, valid for a day. Raises InvalidInput for an operator
    without namespaces, and for a role that does not use them. `subject` is the name of the holder; None: the name of the role.
    """
    return access.sign(SECRET, (), 24 * 3600.0, role=role, namespaces=namespaces, subject=subject)


def client_of(*addresses: str, topics: tuple[str, ...] = ()) -> Servers:
    """Return a client of the workers at these addresses, which may consume these topics, or all topics if none is given. The caller closes
    the client.
    """
    return Servers(addresses, token_for(*topics), call_timeout_seconds=10.0)


@contextmanager
def serving_leader(database: str, **settings: object) -> Iterator[str]:
    """Run leases, leader and server on `database` in threads, and yield the server's address. The worker's loop does not run, so only
    actions of other processes change layouts.

    At the end all services are stopped and the leases released. `settings` overrides settings of the worker.
    """
    worker_settings = _settings(database, settings)
    with application(worker_settings) as app:
        web = WebServer(worker_settings, SECRET)
        worker = build_worker(app, served=web)
        for service in worker.background_services:
            if isinstance(service, SessionLeader):
                service.timing = replace(service.timing, deferral_seconds=0.0)  # no process evaluates topics
        worker.leases.round()
        parts = [threading.Thread(target=worker.leases.run, args=(lambda: None,), name="leases")]
        parts += [
            threading.Thread(target=service.run, name=type(service).__name__)
            for service in worker.background_services
        ]
        for part in parts:
            part.start()
        try:
            yield web.address
        finally:
            with ExitStack() as ends:  # stops all services even if one of them raises
                ends.callback(worker.leases.stop)
                for service in worker.background_services:
                    ends.callback(service.stop)
            for part in parts:
                part.join()
            worker.leases.resign()
            worker.listener.close()


@contextmanager
def serving_worker(database: str, **settings: object) -> Iterator[ServingWorker]:
    """Run one worker on `database` in a thread, and yield it after it has acquired a shard; stop it at the end. `settings` overrides its
    settings.

    Raises DevstackFailed if the worker has no shard after 30 s, or does not end within 30 s at the end of the block.
    """
    worker_settings = _settings(database, settings)
    with application(worker_settings) as app:
        web = WebServer(worker_settings, SECRET)
        worker = build_worker(app, served=web)
        thread = threading.Thread(target=worker.run, name="worker")
        thread.start()
        running = ServingWorker(worker, web.address, thread)
        try:
            has_terms = wait_until(
                lambda: bool(worker.leases.terms), seconds=_READY_SECONDS, poll_seconds=0.02
            )
            if not has_terms:
                raise DevstackFailed(
                    f"the worker has not acquired a shard within {_READY_SECONDS:g} s; see its log"
                )
            yield running
        finally:
            running.stop()


def _settings(database: str, overrides: dict[str, object]) -> Settings:
    """Return the settings of a worker on `database`, with leases of 5 s and a grace period of 4 s unless `overrides`
    has others.
    """
    return Settings(
        database_url=database,
        api_secret=SECRET,
        **{"worker_lease_seconds": 5.0, "consumer_grace_seconds": 4.0, **overrides},  # type: ignore[arg-type]
    )
