"""Read-only access of commands to schema `inspect`, for a login in role `cleave_inspector`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection

from controller.settings import load_settings
from controller.store.postgres.engine import Store
from controller.store.postgres.snapshots import snapshot


@contextmanager
def reading() -> Iterator[Connection]:
    """Open a read-only snapshot of the database in the settings. It allows no changes, whatever the rights of the login."""
    with reading_store("cleave-read") as store, snapshot(store) as tx:
        yield tx


@contextmanager
def reading_store(name: str) -> Iterator[Store]:
    """Open the database in the settings with one connection, and close it at the end of the block; `name` is its application name. The
    store itself does not forbid changes.
    """
    store = Store(load_settings().database_url.get_secret_value(), application_name=name, pool_size=1)
    try:
        yield store
    finally:
        store.dispose()
