"""Decisions of the decision log with their inputs, and the refusals of the newest evaluations."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from controller.actions.fields import TopicName
from controller.clock import to_ms
from controller.domain.decision import Lane, RefusalReason
from controller.domain.refusal_text import how_far
from controller.domain.whole_numbers import MOST
from controller.questions import evaluations
from controller.questions.question import (
    DECIDED_BY_RUN,
    FIND,
    ONE_PAST_TOPIC,
    TOPIC,
    Filter,
    Question,
    Row,
    run_filter,
    span_filters,
)

DecisionId = Annotated[int, Field(ge=0, le=MOST, description="Id of the decision.", examples=[42])]
_ONE_DECISION = Filter("decision_id = :decision_id", DecisionId)
_SPAN = span_filters("decided_at")
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


def _decision(row: Row, _now: datetime) -> Row:
    """Return the row of `inspect.decisions` with its evaluation as a document: times instead of milliseconds, and a
    text (`how_far`) for each refusal about its distance from an action at the time of the decision, not at `_now`.
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
    "List decisions of the decision log with their refusals, newest first.",
    {"decision_id": int},
    {
        **_SPAN,
        "topic": ONE_PAST_TOPIC,
        "find": FIND,
        "lane": Filter("lanes @> ARRAY[CAST(:lane AS text)]", Lane, "Only decisions in this lane.", ["load"]),
        "reason": Filter(
            "refusals @> jsonb_build_array(jsonb_build_object('reason', CAST(:reason AS text)))",
            RefusalReason,
            "Only decisions with a refusal for this reason.",
            ["disabled"],
        ),
        "acted": Filter(
            "(decisions <> '[]') = (:acted = 'yes')",
            Literal["yes", "no"],
            "Only decisions with actions, or only those without actions.",
            ["yes"],
        ),
        "decider": Filter(
            "strpos(decided_by, :decider) > 0",
            Annotated[str, Field(max_length=1000)],
            "Only decisions with this text in `decided_by`.",
            ["worker"],
        ),
        "run": run_filter(DECIDED_BY_RUN),
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
    "List decisions as they were written, with their evaluation inputs, newest first. A row has about 10 KB.",
    {"decided_at": datetime, "decision_id": int},
    {"topic": ONE_PAST_TOPIC},
    descending=True,
    table=LIST_DECISIONS.table,
    of_past=True,
)
SHOW_DECISION = Question(
    "decisions show",
    "/decisions/{decision_id}",
    "inspect.decisions",
    "Show a decision with its evaluation input.",
    {"decision_id": int},
    {"decision_id": _ONE_DECISION},
    missing=_MISSING,
    one_row=True,
    present=_decision,
)
SHOW_INPUTS = Question(
    "decisions inputs",
    "/decisions/{decision_id}/inputs",
    "inspect.decision_inputs",
    "Show the exact inputs of a decision and its outcome, so that the decision can be repeated elsewhere.",
    {"decision_id": int},
    {"decision_id": _ONE_DECISION},
    missing=_MISSING,
    one_row=True,
)
LIST_INPUTS = Question(
    "decisions of-topic",
    "/topics/{topic}/decisions/inputs",
    "inspect.decision_inputs",
    "List the inputs and outcomes of a topic's decisions, in the order of the decisions.",
    {"decision_id": int},
    {**_SPAN, "topic": Filter("topic = :topic", TopicName)},
    of_past=True,
    default_limit=1000,
)
LIST_REFUSALS = Question(
    "decisions refusals",
    "/refusals",
    "inspect.why_not",
    "List the refusals of the newest evaluation of each lane, with their reasons and distances from an action, newest first.",
    {"decided_at": datetime, "topic": str, **_REFUSAL_KEYS},
    {"topic": ONE_PAST_TOPIC},
    descending=True,
    table=_REFUSAL_TABLE,
    of_past=True,
    present=_refusal,
)
LIST_REFUSALS_OF_TOPIC = Question(
    "decisions refusals-of-topic",
    "/topics/{topic}/refusals",
    "inspect.why_not",
    "List the refusals of the newest evaluation of each lane of a topic, with their reasons and distances from an action.",
    _REFUSAL_KEYS,
    {"topic": TOPIC},
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
