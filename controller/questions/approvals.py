"""Acts that wait for a person, or waited."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from controller.domain.whole_numbers import MOST
from controller.questions.question import Question, QuestionRequest, TopicFilter


class ListApprovals(TopicFilter):
    """List acts that wait for a person, newest first. Without an answer, `default_answer` holds at `expires_at`."""

    state: Literal["pending", "approved", "rejected", "expired", "done", "any"] = Field(
        "pending", description="Only acts in this state; any: all acts."
    )


class ShowApproval(QuestionRequest):
    """Show an act that waits for a person, or waited."""

    approval_id: Annotated[int, Field(ge=0, le=MOST, description="Id of the approval.", examples=[17])]


LIST_APPROVALS = Question(
    "approvals list",
    "/approvals",
    "inspect.approvals",
    ListApprovals,
    {"approval_id": int},
    {"topic": "topic_id = :topic_id", "state": "state = :state OR :state = 'any'"},
    descending=True,
    table=(
        "approval_id",
        "topic",
        "act",
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
