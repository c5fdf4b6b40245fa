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
    ONE_PAST_TOPIC,
    Filter,
    Question,
    run_filter,
)

OperationId = Annotated[int, Field(ge=0, le=MOST, description="Id of the operation.", examples=[42])]


_ONE_OPERATION = Filter("operation_id = :operation_id", OperationId)
_FROM_DECISION_BY_RUN = f"decision_id IN (SELECT decision_id FROM inspect.decisions WHERE {DECIDED_BY_RUN})"  # noqa: S608 - constants only
"""Condition that the operation carries out a decision that the DAG run made."""
LIST_OPERATIONS = Question(
    "operations",
    "/operations",
    "inspect.operations",
    "List operations, newest first.",
    {"operation_id": int},
    {
        "topic": ONE_PAST_TOPIC,
        "topic_id": Filter("topic_id = :topic_id", None),
        "live": Filter("live", bool, "Only operations in progress."),
        "stuck": Filter(
            "stuck_because IS NOT NULL",
            bool,
            "Only operations that make no progress; `stuck_because` is the reason.",
        ),
        "find": FIND,
        "state": Filter(
            "state = ANY (CAST(:state AS text[]))",
            OperationState,
            "Only operations in these states.",
            [["done"]],
            most=20,
        ),
        "kind": Filter("kind = :kind", OperationKind, "Only operations of this kind.", ["split"]),
        "origin": Filter("origin = :origin", Origin, "Only operations of this origin.", ["auto"]),
        "actor": Filter(
            "strpos(actor, :actor) > 0",
            Annotated[str, Field(max_length=1000)],
            "Only operations of actors with this text in their names.",
            ["ann"],
        ),
        "segment_id": Filter(
            ":segment_id = ANY (parents) OR :segment_id = ANY (children)",
            SegmentId,
            "Only operations that seal or create this segment.",
            [0],
        ),
        "run": run_filter(f"{ASKED_BY_RUN} OR {_FROM_DECISION_BY_RUN}"),
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
    "Show one operation.",
    {"operation_id": int},
    {"operation_id": _ONE_OPERATION},
    missing="operation {operation_id} is not in the journal; list the operations of the topic",
    one_row=True,
)
LIST_STEPS = Question(
    "operations steps",
    "/operations/{operation_id}/steps",
    "inspect.operation_steps",
    "List the steps that runners performed for an operation, in their order.",
    {"sequence": int},
    {"operation_id": _ONE_OPERATION},
)
QUESTIONS = (LIST_OPERATIONS, SHOW_OPERATION, LIST_STEPS)
