"""Operations of the journal."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from controller.domain.operation import OperationKind, OperationState, Origin
from controller.domain.whole_numbers import MOST
from controller.questions.history import SegmentId
from controller.questions.question import (
    ASKED_BY_RUN,
    DECIDED_BY_RUN,
    FIND,
    DagRun,
    Find,
    Question,
    QuestionRequest,
    TopicFilter,
)

OperationId = Annotated[int, Field(ge=0, le=MOST, description="Id of the operation.", examples=[42])]


class ListOperations(TopicFilter):
    """List operations, newest first."""

    live: bool = Field(False, description="Only operations in progress.")
    stuck: bool = Field(
        False, description="Only operations that make no progress; `stuck_because` is the reason."
    )
    find: Find = None
    state: Annotated[list[OperationState], Field(max_length=20)] | None = Field(
        None, description="Only operations in these states.", examples=[["done"]]
    )
    kind: OperationKind | None = Field(None, description="Only operations of this kind.", examples=["split"])
    origin: Origin | None = Field(None, description="Only operations of this origin.", examples=["auto"])
    actor: str | None = Field(
        None,
        max_length=1000,
        description="Only operations of actors with this text in their names.",
        examples=["ann"],
    )
    segment_id: SegmentId | None = Field(
        None, description="Only operations that seal or create this segment.", examples=[0]
    )
    run: DagRun = None


class ShowOperation(QuestionRequest):
    """Show one operation."""

    operation_id: OperationId


class ListSteps(ShowOperation):
    """List the steps that runners performed for an operation, in their order."""


LIST_OPERATIONS = Question(
    "operations",
    "/operations",
    "inspect.operations",
    ListOperations,
    {"operation_id": int},
    {
        "topic": "topic = :topic",
        "topic_id": "topic_id = :topic_id",
        "live": "live",
        "stuck": "stuck_because IS NOT NULL",
        "find": FIND,
        "state": "state = ANY (CAST(:state AS text[]))",
        "kind": "kind = :kind",
        "origin": "origin = :origin",
        "actor": "strpos(actor, :actor) > 0",
        "segment_id": ":segment_id = ANY (parents) OR :segment_id = ANY (children)",
        "run": f"{ASKED_BY_RUN} OR decision_id IN (SELECT decision_id FROM inspect.decisions WHERE {DECIDED_BY_RUN})",  # noqa: S608 - constants only
    },
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
    missing="operation {operation_id} is not in the journal; list the operations of the topic",
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
