"""Read the inspect views for programs: the same rows `psql` shows, as dictionaries.

Whoever can say it with a view asks here instead of writing a second query. Values are bound, view and column names
come from the code only.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, text


def rows(tx: Connection, statement: str, **parameters: object) -> list[dict[str, Any]]:
    """The rows of a statement over schema inspect, in its order."""
    return [dict(row) for row in tx.execute(text(statement), parameters).mappings()]
