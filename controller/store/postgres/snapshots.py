"""Snapshots: several statements that read one state of the database and change nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, text

from controller.store.postgres.engine import Store


@contextmanager
def snapshot(store: Store) -> Iterator[Connection]:
    """Open one read-only transaction whose statements all see the same state."""
    with store.transaction() as tx:
        tx.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"))
        yield tx
