"""A private PostgreSQL server for a benchmark, with Cleave's schema and no rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from controller.devstack.postgres import DURABLE, EmbeddedPostgres
from controller.store.postgres.engine import Store
from controller.store.postgres.migrations import migrate


@contextmanager
def fresh_store(directory: Path) -> Iterator[Store]:
    """Start a server in `directory` and yield a store on it; the server and its data are deleted at the end."""
    server = EmbeddedPostgres(directory, settings=DURABLE)
    try:
        server.start()
        url = server.create_database("cleave")
        migrate(url)
        store = Store(url, application_name="benchmark")
        try:
            yield store
        finally:
            store.dispose()
    finally:
        server.destroy()
