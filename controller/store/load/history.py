"""The history of load records, which a trigger writes: how much of it is kept."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, text

_FORGET = text("DELETE FROM cleave.load_history WHERE recorded_at < :older_than")


def forget_before(tx: Connection, older_than: datetime) -> int:
    """Deletes what was recorded before that instant; returns how many rows."""
    return tx.execute(_FORGET, {"older_than": older_than}).rowcount
