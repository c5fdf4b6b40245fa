"""The present instant by the database's clock, which every process of an installation shares."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, text


def database_now(tx: Connection) -> datetime:
    """Now, not the transaction's beginning. This clock judges every term, expiry and cooldown."""
    now: datetime = tx.execute(text("SELECT clock_timestamp()")).scalar_one()
    return now
