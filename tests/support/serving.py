"""A worker's web side in this process: leases, leader, layout feed and server on a free port, on a real database."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from controller.bootstrap import application, build_worker
from controller.client.servers import Servers
from controller.entrypoints.web import access
from controller.entrypoints.web.server import WebServer
from controller.services.worker.worker import Worker
from controller.settings import Settings
from tests.support.waiting import wait_until

SECRET = "a secret that only tests use, long enough"


@dataclass
class ServingWorker:
    """A worker that serves consumers, running in threads of this process."""

    worker: Worker
    address: str
    thread: threading.Thread

    def stop(self) -> None:
        """As on SIGTERM; returns when it has left."""
        self.worker.stop()
        self.thread.join(20)


def client_of(*addresses: str, topics: tuple[str, ...] = ("topic://*",)) -> Servers:
    """A client that may consume these topics."""
    return Servers(addresses, access.sign(SECRET, topics, 3600.0), call_timeout_seconds=10.0)


@contextmanager
def serving_worker(database: str, **settings: object) -> Iterator[ServingWorker]:
    """One worker; it has taken its shards when this is entered."""
    given = Settings(
        database_url=database,  # type: ignore[arg-type]
        api_secret=SECRET,  # type: ignore[arg-type]
        **{"worker_lease_seconds": 5.0, "consumer_grace_seconds": 4.0, **settings},  # type: ignore[arg-type]
    )
    with application(given) as app:
        web = WebServer(given, SECRET)
        worker = build_worker(app, served=web)
        thread = threading.Thread(target=worker.run, name="worker")
        thread.start()
        running = ServingWorker(worker, web.address, thread)
        try:
            wait_until(lambda: worker.leases.terms, timeout_seconds=30, message="the worker has shards")
            yield running
        finally:
            running.stop()
