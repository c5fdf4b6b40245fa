"""Reads the inspect views for programs: the rows that `psql` shows, as dictionaries.

If a view has an answer, programs read the view instead of a second query. Values are bound; names of views and columns come
only from the code.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, text


def rows(tx: Connection, statement: str, **parameters: object) -> list[dict[str, Any]]:
    """Return the rows of a statement over schema inspect, in its order, as dictionaries by column. `parameters` are bound as `:name`."""
    return [dict(row) for row in tx.execute(text(statement), parameters).mappings()]
