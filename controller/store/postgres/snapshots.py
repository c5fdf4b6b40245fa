"""Snapshots: several statements that read one state of the database and change nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, text

from controller.store.postgres.engine import Store

_LIMIT = text("SELECT set_config('statement_timeout', :milliseconds, true)")


@contextmanager
def snapshot(store: Store, *, statement_seconds: float | None = None) -> Iterator[Connection]:
    """Open one read-only transaction whose statements all see the same state.

    `statement_seconds` limits the time of each statement; None uses the limit of the store. A statement that takes
    longer raises StoreUnavailable.
    """
    with store.transaction() as tx:
        tx.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"))
        if statement_seconds is not None:
            tx.execute(_LIMIT, {"milliseconds": str(round(statement_seconds * 1_000))})
        yield tx
