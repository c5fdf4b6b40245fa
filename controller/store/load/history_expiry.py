"""Deletes old rows of the history of load records, which a trigger writes."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, text

_FORGET = text("DELETE FROM cleave.load_history WHERE recorded_at < :older_than")


def forget_before(tx: Connection, older_than: datetime) -> int:
    """Delete rows of the history of load records that were recorded before `older_than`. Return the number of deleted rows."""
    return tx.execute(_FORGET, {"older_than": older_than}).rowcount
