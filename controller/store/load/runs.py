"""Reads which aggregation runs were merged. Only the rates of merged runs belong into the history."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from sqlalchemy import Connection, text

_MERGED = text("SELECT run_id, window_end FROM cleave.load_run WHERE run_id = ANY (:run_ids)")


def merged(tx: Connection, run_ids: Collection[str]) -> set[tuple[str, datetime]]:
    """Return those of the runs that were merged, each as its id and the end of its window. At most one run per window
    is merged. The role of a loader suffices.
    """
    return {(row.run_id, row.window_end) for row in tx.execute(_MERGED, {"run_ids": list(run_ids)})}
