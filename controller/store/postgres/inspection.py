"""Read the inspect views for programs: the same rows `psql` shows, as dictionaries.

Where a view has the answer, it is asked here, and no second query is written. Values are bound, view and column names
come from the code only.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, text


def rows(tx: Connection, statement: str, **parameters: object) -> list[dict[str, Any]]:
    """The rows of a statement over schema inspect, in its order."""
    return [dict(row) for row in tx.execute(text(statement), parameters).mappings()]
