"""Deletes old rows of the history of load records, which a trigger writes, old aggregation runs and silent sources."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, text

_FORGET = text("DELETE FROM cleave.load_history WHERE recorded_at < :older_than")


def forget_before(tx: Connection, older_than: datetime) -> int:
    """Delete rows of the history of load records that were recorded before `older_than`. Return the number of deleted rows."""
    return tx.execute(_FORGET, {"older_than": older_than}).rowcount


def forget_runs_before(tx: Connection, older_than: datetime) -> int:
    """Delete aggregation runs that were applied more than a day before `older_than`, and sources that have been silent since
    `older_than` and have no load record. Return the number of deleted rows. Runs of the last 31 days and the newest run are kept.
    Waits for a concurrent merge.
    """
    expire = text("SELECT cleave.expire_load_runs(:older_than)")
    return int(tx.execute(expire, {"older_than": older_than}).scalar_one())
