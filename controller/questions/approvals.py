"""What waits for a person, or waited, whatever it is about."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from controller.domain.approvals import Subject
from controller.domain.whole_numbers import MOST
from controller.questions.question import Question, QuestionRequest, TopicFilter


class ListApprovals(TopicFilter):
    """List what waits for a person, newest first. Without an answer, `default_answer` holds at `expires_at`."""

    subject: Subject | None = Field(None, description="Only approvals about such a subject.")
    state: Literal["pending", "approved", "rejected", "expired", "done", "any"] = Field(
        "pending", description="Only approvals in this state; any: all approvals."
    )


class ShowApproval(QuestionRequest):
    """Show what waits for a person, or waited."""

    approval_id: Annotated[int, Field(ge=0, le=MOST, description="Id of the approval.", examples=[17])]


LIST_APPROVALS = Question(
    "approvals list",
    "/approvals",
    "inspect.approvals",
    ListApprovals,
    {"approval_id": int},
    {
        "topic": "topic_id = :topic_id",
        "subject": "subject = :subject",
        "state": "state = :state OR :state = 'any'",
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
    ShowApproval,
    {"approval_id": int},
    {"approval_id": "approval_id = :approval_id"},
    one_row=True,
    missing="approval {approval_id} does not exist; `cleave approvals list --state any` lists them",
)
QUESTIONS = (LIST_APPROVALS, SHOW_APPROVAL)
