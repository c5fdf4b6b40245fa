"""Dry runs: the code of the action on a store that rolls back every transaction at its end.

A dry run refuses what the action would refuse (a busy segment, a name that is taken, a policy that does not
fit the levels above), and other sessions never see its rows. It does not show what happens after an intent is
written, such as an error of the data plane. Sequences advance, as in any transaction that is rolled back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, text

from controller.bootstrap import Application
from controller.store.postgres.engine import Store


class DryRunStore(Store):
    """A store whose transactions are checked up to the last deferred constraint and then rolled back."""

    rolls_back = True

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Open a transaction that is rolled back when the block ends. Deferred constraints are checked first, so
        the errors that a commit would have raised are raised. The errors are those of `Store.transaction`.
        """
        with super().transaction() as tx:
            attempt = tx.begin_nested()
            yield tx
            tx.execute(text("SET CONSTRAINTS ALL IMMEDIATE"))
            attempt.rollback()

    @contextmanager
    def single_statement(self) -> Iterator[Connection]:
        """Open a transaction for a single statement, which is rolled back as well."""
        with self.transaction() as tx:
            yield tx


@contextmanager
def store_for(app: Application, dry_run: bool) -> Iterator[Store]:
    """Yield the application's own store, or for a dry run a `DryRunStore`, which is disposed at the end.

    Each transaction of a `DryRunStore` is rolled back when it ends, so a later transaction does not see its
    changes. The store has one connection, so a transaction must not be opened inside another.
    """
    if not dry_run:
        yield app.store
        return
    store = DryRunStore(app.store.address, application_name="cleave-dry-run", pool_size=1)
    try:
        yield store
    finally:
        store.dispose()
