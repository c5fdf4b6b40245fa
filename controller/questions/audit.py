"""The audit of requests over HTTP."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from controller.actions.rights import Right
from controller.questions.question import Filter, Question

LIST_AUDIT = Question(
    "audit",
    "/audit",
    "inspect.audit",
    "List requests that changed something, were to change something, or were denied, newest first.",
    {"audit_id": int},
    {
        "subject": Filter(
            "subject = :subject",
            Annotated[str, Field(max_length=500)],
            "Only requests of this subject.",
            ["ada"],
        )
    },
    descending=True,
    right=Right.ADMINISTER,
)
QUESTIONS = (LIST_AUDIT,)
