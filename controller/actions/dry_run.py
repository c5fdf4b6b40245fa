"""Dry runs: the same code on a store that rolls back every transaction at its end.

A dry run refuses what the real run would refuse (a busy segment, a name that is taken, a policy that does not fit with the levels
above), and no other session sees a row of it. A dry run does not show what comes after an intent, which is whether the data plane
does its part. Sequences move on, as they do for any transaction that is rolled back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, text

from controller.bootstrap import Application
from controller.store.postgres.engine import Store


class DryRunStore(Store):
    """A store whose transactions are checked to the last deferred constraint and then rolled back."""

    rolls_back = True

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """One transaction that is rolled back at its end. It raises what its commit would have raised."""
        with super().transaction() as tx:
            attempt = tx.begin_nested()
            yield tx
            tx.execute(text("SET CONSTRAINTS ALL IMMEDIATE"))
            attempt.rollback()

    @contextmanager
    def single_statement(self) -> Iterator[Connection]:
        """The same for a statement that would be a transaction by itself."""
        with self.transaction() as tx:
            yield tx


@contextmanager
def store_for(app: Application, dry_run: bool) -> Iterator[Store]:
    """Open the application's own store, or for a dry run a store that rolls back."""
    if not dry_run:
        yield app.store
        return
    store = DryRunStore(app.store.address, application_name="cleave-dry-run", pool_size=1)
    try:
        yield store
    finally:
        store.dispose()
