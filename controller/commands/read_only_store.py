"""What commands read through: one read-only transaction on schema `inspect`, for a login in role `cleave_inspector`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection

from controller.settings import load_settings
from controller.store.postgres.engine import Store
from controller.store.postgres.snapshots import snapshot


@contextmanager
def reading() -> Iterator[Connection]:
    """One snapshot of the database that the settings name. Nothing can be changed in it, whatever the login may do."""
    with reading_store("cleave-read") as store, snapshot(store) as tx:
        yield tx


@contextmanager
def reading_store(name: str) -> Iterator[Store]:
    """The database that the settings name, for one reader at a time; `name` is what it sees connected."""
    store = Store(load_settings().database_url.get_secret_value(), application_name=name, pool_size=1)
    try:
        yield store
    finally:
        store.dispose()
