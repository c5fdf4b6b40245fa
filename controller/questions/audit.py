"""The audit of requests over HTTP."""

from __future__ import annotations

from pydantic import Field

from controller.actions.rights import Right
from controller.questions.question import Question, QuestionRequest


class ListAudit(QuestionRequest):
    """List requests that changed something, were to change something, or were denied, newest first."""

    subject: str | None = Field(
        None, max_length=500, description="Only requests of this subject.", examples=["ada"]
    )


LIST_AUDIT = Question(
    "audit",
    "/audit",
    "inspect.audit",
    ListAudit,
    {"audit_id": int},
    {"subject": "subject = :subject"},
    descending=True,
    right=Right.ADMINISTER,
)
QUESTIONS = (LIST_AUDIT,)
