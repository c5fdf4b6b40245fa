"""Deletes the load of segments that were sealed, pruned, replaced or deleted, and old rows: of the history of load records, which a
trigger writes, of aggregation runs and of silent sources.

The merge of an aggregation run first locks the rates of segments, then the evaluations of their topics, then the key counts. A commit
that changes a layout must lock in the same order, otherwise the commit and the merge deadlock: it deletes the rates before it writes the
history of the layout, which locks the evaluation, and the key counts afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection, text

_EXPIRE_HISTORY = text("DELETE FROM cleave.load_history WHERE recorded_at < :older_than")
_RATES = ("load_memory", "segment_load")
"""Tables in the order in which a merge locks their rows."""
_COUNTS = ("segment_sketch", "segment_producers")


def forget_rates(tx: Connection, topic_id: int, segment_ids: Sequence[int] | None = None) -> None:
    """Delete the load memories and load records of the segments; None: of all segments of the topic. The caller has not locked the
    evaluation of the topic in this transaction.
    """
    _forget(tx, _RATES, topic_id, segment_ids)


def forget_counts(tx: Connection, topic_id: int, segment_ids: Sequence[int] | None = None) -> None:
    """Delete the key histograms and numbers of producers of the segments; None: of all segments of the topic."""
    _forget(tx, _COUNTS, topic_id, segment_ids)


def forget_sealed(tx: Connection) -> int:
    """Delete the load memories, load records and numbers of producers of segments that were sealed more than an hour ago, unless an ACTIVE
    segment of their topic has no load record yet. Return the number of deleted rows. Locked rows are left to the next call.
    """
    return int(tx.execute(text("SELECT cleave.forget_sealed_loads()")).scalar_one())


def forget_history_before(tx: Connection, older_than: datetime) -> int:
    """Delete rows of the history of load records that were recorded before `older_than`. Return the number of deleted rows."""
    return tx.execute(_EXPIRE_HISTORY, {"older_than": older_than}).rowcount


def forget_runs_before(tx: Connection, older_than: datetime) -> int:
    """Delete aggregation runs that were applied more than a day before `older_than`, and sources that have been silent since
    `older_than` and have no load record. Return the number of deleted rows. Runs of the last 31 days and the newest run are kept.
    Waits for a concurrent merge.
    """
    expire = text("SELECT cleave.expire_load_runs(:older_than)")
    return int(tx.execute(expire, {"older_than": older_than}).scalar_one())


def _forget(tx: Connection, tables: Sequence[str], topic_id: int, segment_ids: Sequence[int] | None) -> None:
    for table in tables:
        statement = f"""
            DELETE FROM cleave.{table} WHERE topic_id = :topic_id
               AND (CAST(:segment_ids AS bigint[]) IS NULL OR segment_id = ANY (CAST(:segment_ids AS bigint[])))
        """  # noqa: S608 - our own names
        parameters = {"topic_id": topic_id, "segment_ids": None if segment_ids is None else list(segment_ids)}
        tx.execute(text(statement), parameters)
