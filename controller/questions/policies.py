"""Candidates of policy, and who set which knob when."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from controller.domain.names import LONGEST_TOPIC
from controller.domain.policy import PolicyLevel
from controller.questions.question import Question, QuestionRequest, Row, TopicFilter
from controller.store.decisions.candidates import knobs_text


class ListCandidates(TopicFilter):
    """List policies that were proposed, newest first: their knobs, what became of them, and both regrets."""


class ListKnobChanges(QuestionRequest):
    """List who set which knob when, newest first. `was` or `value` is null where the level did not or does not set the knob."""

    level: PolicyLevel | None = Field(None, description="Only changes at this kind of level.")
    name: str | None = Field(
        None,
        max_length=LONGEST_TOPIC,
        description="Only changes of this namespace or topic.",
        examples=["acme/shop"],
    )


def _with_knobs(row: Row, _now: datetime) -> Row:
    return {**row, "knobs": knobs_text(row["override"])}


LIST_CANDIDATES = Question(
    "policy candidates",
    "/policies/candidates",
    "inspect.policy_candidates",
    ListCandidates,
    {"candidate_id": int},
    {"topic": "topic_id = :topic_id"},
    descending=True,
    table=(
        "candidate_id",
        "topic",
        "state",
        "knobs",
        "proposed_by",
        "proposed_at",
        "regret",
        "live_regret",
        "run_id",
        "shadow_decisions",
    ),
    present=_with_knobs,
)
LIST_KNOB_CHANGES = Question(
    "policy history",
    "/policies/history",
    "inspect.policy_history",
    ListKnobChanges,
    {"change_id": int, "knob": str},
    {"level": "level = :level", "name": "name = :name"},
    descending=True,
    table=("changed_at", "level", "name", "actor", "knob", "was", "value"),
)
QUESTIONS = (LIST_CANDIDATES, LIST_KNOB_CHANGES)
