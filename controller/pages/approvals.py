"""Approvals that wait for an answer, the earliest to expire first."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection

from controller.actions.fields import fill_in
from controller.pages.context import MAX_ROWS, Reading
from controller.questions.approvals import LIST_APPROVALS, read_waiting
from controller.questions.question import read_page
from controller.tasks.dag_runs import presenting_run


def page(tx: Reading) -> dict[str, Any]:
    """Return the waiting approvals, and the newest `MAX_ROWS` approvals that were answered or have expired."""
    settled = fill_in(LIST_APPROVALS.request, {"state": "settled"})
    return {
        "approvals": waiting(tx),
        "ended": read_page(tx, LIST_APPROVALS, settled, limit=MAX_ROWS).rows,
    }


def waiting(tx: Connection, topic_id: int | None = None) -> list[dict[str, Any]]:
    """Return the waiting approvals of one topic or of all topics, `MAX_ROWS` at most. Column `asking` is the Airflow
    run that requests the answer, None without one; `question` is the map index of the task instance.
    """
    rows = read_waiting(tx, topic_id, limit=MAX_ROWS)
    return [row | {"asking": presenting_run(row["asked_in"])} for row in rows]
