"""What waits for a person, for the pages that show them: those whose time is over first stand first."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection

from controller.pages.desk import MOST_ROWS
from controller.questions.approvals import LIST_APPROVALS, ListApprovals, read_waiting
from controller.questions.question import read_page
from controller.tasks.dag_runs import asking_run


def page(tx: Connection) -> dict[str, Any]:
    """Return what waits, and the newest approvals that were answered or have expired."""
    newest = read_page(tx, LIST_APPROVALS, ListApprovals(state="any"), limit=MOST_ROWS).rows
    return {"approvals": waiting(tx), "ended": [row for row in newest if row["state"] != "pending"]}


def waiting(tx: Connection, topic_id: int | None = None) -> list[dict[str, Any]]:
    """Of one topic, or of all; `MOST_ROWS` at most. `asking`: the run of Airflow that asks, None where none does, and
    `question` which of its questions it is: its map index.
    """
    rows = read_waiting(tx, topic_id, limit=MOST_ROWS)
    return [row | {"asking": asking_run(row["asked_in"])} for row in rows]
