"""Actions that wait for a person, or waited, of all subjects."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from sqlalchemy import Connection

from controller.domain.approval_states import Subject
from controller.domain.whole_numbers import MOST
from controller.questions.question import ONE_TOPIC, Filter, Question, Row
from controller.store.postgres import inspection

ApprovalId = Annotated[int, Field(ge=0, le=MOST, description="Id of the approval.", examples=[17])]
_WAITING = """
    SELECT approval_id, subject, subject_id, level, topic, action, reason, proposed_at, proposed_by, expires_at, default_answer, decision_id, asked_in,
           (SELECT count(*) FROM inspect.approvals o WHERE o.asked_in = a.asked_in AND o.approval_id < a.approval_id) AS question
      FROM inspect.approvals a
     WHERE state = 'pending' AND is_answerable AND (CAST(:topic_id AS bigint) IS NULL OR topic_id = :topic_id)
     ORDER BY expires_at, approval_id LIMIT :limit
"""


LIST_APPROVALS = Question(
    "approvals list",
    "/approvals",
    "inspect.approvals",
    "List actions that wait for a person, newest first. Without an answer, `default_answer` holds at `expires_at`.",
    {"approval_id": int},
    {
        "topic": ONE_TOPIC,
        "subject": Filter("subject = :subject", Subject, "Only approvals about such a subject."),
        "state": Filter(
            "state = :state OR :state = 'any' OR (:state = 'settled' AND state <> 'pending')",
            Literal["pending", "approved", "rejected", "expired", "done", "settled", "any"],
            "Only approvals in this state; settled: all that no longer wait; any: all approvals.",
            default="pending",
        ),
    },
    descending=True,
    table=(
        "approval_id",
        "level",
        "action",
        "reason",
        "state",
        "proposed_at",
        "expires_at",
        "default_answer",
        "answered_by",
    ),
)
SHOW_APPROVAL = Question(
    "approvals show",
    "/approvals/{approval_id}",
    "inspect.approvals",
    "Show an action that waits for a person, or waited.",
    {"approval_id": int},
    {"approval_id": Filter("approval_id = :approval_id", ApprovalId)},
    one_row=True,
    missing="approval {approval_id} does not exist; `cleave approvals list --state any` lists them",
)


def read_waiting(tx: Connection, topic_id: int | None = None, *, limit: int) -> list[Row]:
    """Return at most `limit` answerable approvals of one topic (None: of all topics), the first to expire first.
    `question` is the map index of the approval in the Airflow run that requests the answer.
    """
    return inspection.rows(tx, _WAITING, topic_id=topic_id, limit=limit)


QUESTIONS = (LIST_APPROVALS, SHOW_APPROVAL)
