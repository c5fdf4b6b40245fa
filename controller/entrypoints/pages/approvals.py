"""What waits for a person, for the pages that show them: those whose time is over first stand first."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection

from controller.entrypoints.pages.desk import MOST_ROWS
from controller.entrypoints.tasks.dag_runs import asking_run
from controller.questions.approvals import LIST_APPROVALS, ListApprovals
from controller.questions.question import read_page
from controller.store.postgres import inspection

_WAITING = """
    SELECT approval_id, subject, subject_id, level, topic, action, reason, proposed_at, proposed_by, expires_at, default_answer, decision_id, asked_in,
           (SELECT count(*) FROM inspect.approvals o WHERE o.asked_in = a.asked_in AND o.approval_id < a.approval_id) AS question
      FROM inspect.approvals a
     WHERE state = 'pending' AND is_answerable AND (CAST(:topic_id AS bigint) IS NULL OR topic_id = :topic_id)
     ORDER BY expires_at, approval_id LIMIT :limit
"""


def page(tx: Connection) -> dict[str, Any]:
    """Return what waits, and the newest approvals that were answered or have expired."""
    newest = read_page(tx, LIST_APPROVALS, ListApprovals(state="any"), limit=MOST_ROWS).rows
    return {"approvals": waiting(tx), "ended": [row for row in newest if row["state"] != "pending"]}


def waiting(tx: Connection, topic_id: int | None = None) -> list[dict[str, Any]]:
    """Of one topic, or of all; `MOST_ROWS` at most. `asking`: the run of Airflow that asks, None where none does, and
    `question` which of its questions it is: its map index.
    """
    rows = inspection.rows(tx, _WAITING, topic_id=topic_id, limit=MOST_ROWS)
    return [row | {"asking": asking_run(row["asked_in"])} for row in rows]
