"""Operations of the journal."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from controller.domain.whole_numbers import MOST
from controller.questions.question import Question, QuestionRequest, TopicFilter

OperationId = Annotated[int, Field(ge=0, le=MOST, description="Id of the operation.", examples=[42])]


class ListOperations(TopicFilter):
    """List operations, newest first."""

    live: bool = Field(False, description="Only operations that are under way.")
    stuck: bool = Field(False, description="Only operations that make no progress; `stuck_because` says why.")


class ShowOperation(QuestionRequest):
    """Show one operation."""

    operation_id: OperationId


class ListSteps(QuestionRequest):
    """List the steps that runners made for an operation, in their order."""

    operation_id: OperationId


LIST_OPERATIONS = Question(
    "operations",
    "/operations",
    "inspect.operations",
    ListOperations,
    {"operation_id": int},
    {"topic": "topic = :topic", "live": "live", "stuck": "stuck_because IS NOT NULL"},
    descending=True,
    table=(
        "operation_id",
        "topic",
        "kind",
        "state",
        "parents",
        "children",
        "actor",
        "reason",
        "last_error",
        "stuck_because",
    ),
    of_past=True,
)
SHOW_OPERATION = Question(
    "operations get",
    "/operations/{operation_id}",
    "inspect.operations",
    ShowOperation,
    {"operation_id": int},
    {"operation_id": "operation_id = :operation_id"},
    missing="operation {operation_id} is not in the journal; list the topic's operations",
    one_row=True,
)
LIST_STEPS = Question(
    "operations steps",
    "/operations/{operation_id}/steps",
    "inspect.operation_steps",
    ListSteps,
    {"sequence": int},
    {"operation_id": "operation_id = :operation_id"},
)
QUESTIONS = (LIST_OPERATIONS, SHOW_OPERATION, LIST_STEPS)
