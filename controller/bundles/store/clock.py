"""The present instant by the database's clock, which every process of a cluster shares."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, text


def database_now(tx: Connection) -> datetime:
    """Now, not the transaction's beginning."""
    now: datetime = tx.execute(text("SELECT clock_timestamp()")).scalar_one()
    return now
