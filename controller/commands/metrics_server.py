"""The HTTP server of a process's metrics and health.

`/metrics` has the metrics of a registry. `/live` answers while the process runs. `/health` answers 200 if the process
reaches its database within `CHECK_SECONDS`, otherwise 503 with the reason; a check costs one short statement.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from controller.domain.errors import CleaveError, InvalidInput
from controller.settings import load_settings
from controller.store.postgres.engine import Store, demand_answer

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.registry import Collector

CHECK_SECONDS = 3.0
"""Time for the statement of a health check, and for an attempt to connect."""

Answer = Callable[[dict[str, Any], Any], Iterable[bytes]]


def serve_metrics(host: str, port: int | None, registry: CollectorRegistry | None = None) -> None:
    """Serve metrics and health at the address in a daemon thread; does nothing for `port` None.

    `registry` None: the registry with the metrics of this process. Raises InvalidInput for an address that cannot be bound.
    """
    if port is None:
        return
    from prometheus_client import REGISTRY, make_wsgi_app
    from prometheus_client.exposition import ThreadingWSGIServer

    try:
        server = make_server(
            host,
            port,
            _application(make_wsgi_app(registry or REGISTRY), _database_check()),
            ThreadingWSGIServer,  # a slow scrape does not delay a health check
            handler_class=_Handler,
        )
    # TypeError is raised for a host name that cannot be encoded
    except (OSError, TypeError) as error:
        raise InvalidInput(f"metrics cannot be served at {host}:{port}: {error}; choose another") from error
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()


@contextmanager
def exported(collector: Collector) -> Iterator[None]:
    """Export the metrics of the collector with those of this process until the end of the block."""
    from prometheus_client import REGISTRY

    REGISTRY.register(collector)
    try:
        yield
    finally:
        REGISTRY.unregister(collector)


class _Handler(WSGIRequestHandler):
    """A handler of requests that logs nothing."""

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the name of the base class
        """Log nothing: probes and scrapes would fill the log."""


def _database_check() -> Callable[[], None]:
    """Return a health check of the database in the settings. One check runs at a time. A check raises CleaveError if the database does not
    answer, or refuses the login.
    """
    lock = threading.Lock()

    @cache
    def store() -> Store:
        url = load_settings().database_url.get_secret_value()
        return Store(url, application_name="cleave-health", pool_size=1, statement_seconds=CHECK_SECONDS)

    def check() -> None:
        with lock, store().transaction() as tx:
            demand_answer(tx)

    return check


def _application(metrics: Any, check: Callable[[], None]) -> Answer:
    """Return the WSGI application: `/live` answers 200, `/health` answers 200, or 503 with the error's message if `check` raises
    CleaveError, and other paths are answered by the WSGI application `metrics`.
    """

    def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path not in ("/live", "/health"):
            return metrics(environ, start_response)  # type: ignore[no-any-return]
        status, reason = "200 OK", "ok"
        if path == "/health":
            try:
                check()
            except CleaveError as error:
                status, reason = "503 Service Unavailable", str(error)
        start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
        return [reason.encode() + b"\n"]

    return answer
