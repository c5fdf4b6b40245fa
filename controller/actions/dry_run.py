"""Dry runs: the same code on a store that takes every transaction back at its end.

So a dry run refuses what the real run would refuse (a busy segment, a name that is taken, a policy that does not fit
with the levels above), and nobody else ever sees a row of it. It does not show what comes after an intent, which is
whether the data plane will do its part. Sequences move on, as they do for any transaction that is rolled back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, text

from controller.bootstrap import Application
from controller.store.postgres.engine import Store


class Rehearsal(Store):
    """A store whose transactions are checked to the last deferred constraint and then rolled back."""

    takes_back = True

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
def stage(app: Application, dry_run: bool) -> Iterator[Store]:
    """The application's own store, or for a dry run one to rehearse on."""
    if not dry_run:
        yield app.store
        return
    store = Rehearsal(app.store.address, application_name="cleave-dry-run", pool_size=1)
    try:
        yield store
    finally:
        store.dispose()
