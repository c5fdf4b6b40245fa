"""Reads which aggregation runs were merged. Only the rates of merged runs belong into the history."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import Connection, text

from controller.clock import to_datetime


@dataclass(frozen=True, slots=True)
class RunOfWindow:
    """A run, identified by its id and the end of its window. At most one run per window is merged."""

    run_id: str
    window_end_ms: int


def merged(tx: Connection, runs: Collection[RunOfWindow]) -> set[RunOfWindow]:
    """Return those of `runs` that were merged, with the same id and the same end of the window. The role of a loader
    suffices.
    """
    if not runs:
        return set()
    runs_by_id = {run.run_id: [r for r in runs if r.run_id == run.run_id] for run in runs}
    rows = tx.execute(
        text("SELECT run_id, window_end FROM cleave.load_run WHERE run_id = ANY (:run_ids)"),
        {"run_ids": list(runs_by_id)},
    )
    return {
        run
        for row in rows
        for run in runs_by_id[row.run_id]
        if to_datetime(run.window_end_ms) == row.window_end
    }
