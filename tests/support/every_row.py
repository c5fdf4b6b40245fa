"""Every row of every table, as text, to detect changes."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import text

from controller.store.postgres.engine import Store

_TABLES = text("""
    SELECT format('%I.%I', n.nspname, c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE c.relkind = 'r' AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname !~ '^pg_'
     ORDER BY 1
""")


def every_row(store: Store, *, but: Collection[str] = ()) -> dict[str, list[str]]:
    """Return the rows by table, without the tables in `but`."""
    with store.transaction() as tx:
        tables = [table for table in tx.execute(_TABLES).scalars() if table not in but]
        return {
            table: sorted(tx.execute(text(f"SELECT CAST(t AS text) FROM {table} t")).scalars())
            for table in tables
        }
