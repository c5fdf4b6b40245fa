"""A database with the current schema whose topics use the profile `pip483`.

A new installation uses `adaptive`. Nearly all tests concern the execution of decisions, which the simple rules of `pip483` show best;
tests of `adaptive` select it.
"""

from __future__ import annotations

from sqlalchemy import NullPool, create_engine, text

from controller.store.postgres.migrations import migrate


def migrate_to_pip483(url: str) -> None:
    """Migrate an empty database as its superuser, and remove every trace of the other profile."""
    migrate(url)
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg2://", 1), poolclass=NullPool)
    with engine.begin() as tx:
        tx.execute(text("SET LOCAL session_replication_role = replica"))  # no trigger counts and notes this
        tx.execute(text("UPDATE cleave.cluster_policy SET policy = '{}', row_version = 1"))
        tx.execute(text("DELETE FROM cleave.policy_change"))
    engine.dispose()
