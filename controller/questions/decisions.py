"""Decisions of the decision log with their inputs, and the refusals of the newest evaluations."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from controller.clock import to_ms
from controller.domain.decision import Lane, RefusalReason
from controller.domain.refusal_text import how_far
from controller.domain.whole_numbers import MOST
from controller.questions import evaluations
from controller.questions.question import (
    DECIDED_BY_RUN,
    FIND,
    DagRun,
    Find,
    Question,
    QuestionRequest,
    Row,
    SpanFilter,
    TopicFilter,
    TopicQuestion,
)

DecisionId = Annotated[int, Field(ge=0, le=MOST, description="Id of the decision.", examples=[42])]
_MISSING = (
    "decision {decision_id} is not in the decision log, or has expired; `cleave decisions list` lists them"
)
_COLUMNS = (
    "decision_id, topic, topic_id, decided_at, epoch, lanes, decided_by, acts, operations, decisions, refusals, valid_until,"
    " code_version"
)
_REFUSAL_KEYS = {
    "lane": str,
    "coalesce(segment_id, -1)": int,
    "coalesce(other_id, -1)": int,
    "reason": str,
}
_REFUSAL_TABLE = ("topic", "lane", "segment_id", "other_id", "reason", "how_far", "not_before")


class ListDecisions(TopicFilter, SpanFilter):
    """List decisions of the decision log with their refusals, newest first."""

    find: Find = None
    lane: Lane | None = Field(None, description="Only decisions in this lane.", examples=["load"])
    reason: RefusalReason | None = Field(
        None, description="Only decisions with a refusal for this reason.", examples=["disabled"]
    )
    acted: Literal["yes", "no"] | None = Field(
        None, description="Only decisions with actions, or only those without actions.", examples=["yes"]
    )
    decider: str | None = Field(
        None,
        max_length=1000,
        description="Only decisions with this text in `decided_by`.",
        examples=["worker"],
    )
    run: DagRun = None


class ListLedger(TopicFilter):
    """List decisions as they were written, with their evaluation inputs, newest first. A row has about 10 KB."""


class ShowDecision(QuestionRequest):
    """Show a decision with its evaluation input."""

    decision_id: DecisionId


class ShowInputs(ShowDecision):
    """Show the exact inputs of a decision and its outcome, so that the decision can be repeated elsewhere."""


class ListInputs(TopicQuestion, SpanFilter):
    """List the inputs and outcomes of a topic's decisions, in the order of the decisions."""


class ListRefusals(TopicFilter):
    """List the refusals of the newest evaluation of each lane, with their reasons and distances from an action, newest first."""


class ListRefusalsOfTopic(TopicQuestion):
    """List the refusals of the newest evaluation of each lane of a topic, with their reasons and distances from an action."""


def _decision(row: Row, _now: datetime) -> Row:
    """Return the row with its evaluation as a document: times instead of milliseconds, and a text (`how_far`)
    for each refusal, as of the decision.
    """
    return {**row, **evaluations.document(evaluations.stored_answer(row), to_ms(row["decided_at"]))}


def _refusal(row: Row, now: datetime) -> Row:
    """Return the row of `inspect.why_not` with a text (`how_far`) about its distance from an action at `now`."""
    ends = row["not_before"]
    refusal = {**row, "not_before": None if ends is None else to_ms(ends)}
    return {**row, "how_far": how_far(refusal, to_ms(now))}


LIST_DECISIONS = Question(
    "decisions list",
    "/decisions",
    "inspect.decisions",
    ListDecisions,
    {"decision_id": int},
    {
        "topic": "topic = :topic",
        "find": FIND,
        "lane": "lanes @> ARRAY[CAST(:lane AS text)]",
        "reason": "refusals @> jsonb_build_array(jsonb_build_object('reason', CAST(:reason AS text)))",
        "acted": "(decisions <> '[]') = (:acted = 'yes')",
        "decider": "strpos(decided_by, :decider) > 0",
        "since": "decided_at >= :since",
        "until": "decided_at < :until",
        "run": DECIDED_BY_RUN,
    },
    descending=True,
    columns=_COLUMNS,
    table=("decision_id", "decided_at", "topic", "epoch", "lanes", "acts"),
    of_past=True,
    present=_decision,
)
LIST_LEDGER = Question(
    "decisions ledger",
    "/ledger",
    "inspect.decisions",
    ListLedger,
    {"decided_at": datetime, "decision_id": int},
    {"topic": "topic = :topic"},
    descending=True,
    table=LIST_DECISIONS.table,
    of_past=True,
)
SHOW_DECISION = Question(
    "decisions show",
    "/decisions/{decision_id}",
    "inspect.decisions",
    ShowDecision,
    {"decision_id": int},
    {"decision_id": "decision_id = :decision_id"},
    missing=_MISSING,
    one_row=True,
    present=_decision,
)
SHOW_INPUTS = Question(
    "decisions inputs",
    "/decisions/{decision_id}/inputs",
    "inspect.decision_inputs",
    ShowInputs,
    {"decision_id": int},
    {"decision_id": "decision_id = :decision_id"},
    missing=_MISSING,
    one_row=True,
)
LIST_INPUTS = Question(
    "decisions of-topic",
    "/topics/{topic}/decisions/inputs",
    "inspect.decision_inputs",
    ListInputs,
    {"decision_id": int},
    {"topic": "topic = :topic", "since": "decided_at >= :since", "until": "decided_at < :until"},
    of_past=True,
    default_limit=1000,
)
LIST_REFUSALS = Question(
    "decisions refusals",
    "/refusals",
    "inspect.why_not",
    ListRefusals,
    {"decided_at": datetime, "topic": str, **_REFUSAL_KEYS},
    {"topic": "topic = :topic"},
    descending=True,
    table=_REFUSAL_TABLE,
    of_past=True,
    present=_refusal,
)
LIST_REFUSALS_OF_TOPIC = Question(
    "decisions refusals-of-topic",
    "/topics/{topic}/refusals",
    "inspect.why_not",
    ListRefusalsOfTopic,
    _REFUSAL_KEYS,
    {"topic": "topic_id = :topic_id"},
    table=_REFUSAL_TABLE,
    present=_refusal,
    is_command=False,
)
QUESTIONS = (
    LIST_DECISIONS,
    LIST_LEDGER,
    SHOW_DECISION,
    SHOW_INPUTS,
    LIST_INPUTS,
    LIST_REFUSALS,
    LIST_REFUSALS_OF_TOPIC,
)
