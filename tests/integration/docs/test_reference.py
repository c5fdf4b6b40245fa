"""The reference of schema inspect is what the database has."""

from __future__ import annotations

from collections import defaultdict

from sqlalchemy import text

from controller.store.postgres.engine import Store
from docs.reference.pages.views import source, view_columns

_COLUMNS = text("""
    SELECT table_name, column_name FROM information_schema.columns
     WHERE table_schema = 'inspect' ORDER BY table_name, ordinal_position
""")


def test_the_columns_on_the_page_are_those_of_the_views(database: str) -> None:
    store = Store(database)
    found = defaultdict(list)
    with store.transaction() as tx:
        for view, column in tx.execute(_COLUMNS):
            found[view].append(column)
    store.dispose()

    assert view_columns(source()) == found
