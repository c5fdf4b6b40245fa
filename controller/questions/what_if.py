"""The decisions on a topic as it is now: under the policy in force, and under another policy."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from controller.actions.action import report
from controller.actions.context import Context
from controller.actions.responses import Document
from controller.domain.decision import Lane
from controller.domain.situation import Situation
from controller.questions import evaluations
from controller.questions.question import TopicQuestion
from controller.services import what_if


class ShowSituations(TopicQuestion):
    """Show everything that a decision on the topic depends on now, under the policy in force and under another policy."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"changes": {"max_segments": 16}}]})

    changes: dict[str, Any] = Field(
        {}, max_length=100, description="Parameters that differ.", examples=[{"max_segments": 16}]
    )


class CompareDecisions(ShowSituations):
    """Decide on the topic as it is now, under the policy in force and under another policy; nothing is written."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"changes": {"max_segments": 16}, "lanes": ["load"]}]}
    )

    lanes: Annotated[list[Lane], Field(min_length=1, max_length=3)] = list(Lane)


class SituationsAnswer(Document):
    """Two situations, each as `cleave decide --print-snapshot` prints it: a canonical text."""

    topic: str = Field(examples=["topic://acme/shop/orders"])
    in_force: str
    what_if: str

    @property
    def situations(self) -> tuple[Situation, Situation]:
        """The situation under the policy in force, and under the other policy."""
        return Situation.from_json(self.in_force), Situation.from_json(self.what_if)


class Verdict(BaseModel):
    """Acts, refusals with their reasons and how far each was from acting, and until when both hold."""

    decisions: list[dict[str, Any]] = Field(
        examples=[[{"kind": "split", "segment_id": 0, "reason": "msgRateIn"}]]
    )
    refusals: list[dict[str, Any]] = Field(
        examples=[[{"segment_id": 1, "lane": "merge", "reason": "merge-cooldown"}]]
    )
    valid_until: datetime | int | None = Field(
        description="Null until something changes; a number of milliseconds where the instant lies beyond the calendar."
    )


class ChangedParameter(BaseModel):
    """A parameter under both policies."""

    parameter: str = Field(examples=["max_segments"])
    was: Any = Field(examples=[8])
    value: Any = Field(examples=[16])


class Comparison(Document):
    """The verdicts under both policies."""

    topic: str = Field(examples=["topic://acme/shop/orders"])
    epoch: int = Field(examples=[7])
    at: datetime | int | None = Field(examples=["2026-11-21T03:00:00Z"])
    lanes: list[str] = Field(examples=[["load"]])
    changes: list[ChangedParameter]
    is_same: bool
    in_force: Verdict
    what_if: Verdict
    difference: dict[str, Any] = Field(description="Acts and refusals of one verdict alone, by its name.")


def show_situations(context: Context, request: ShowSituations) -> SituationsAnswer:
    """Raises as `what_if.situations_of`."""
    now, then = what_if.situations_of(context.store, context.app.planes, request.topic, request.changes)
    return SituationsAnswer(topic=request.topic, in_force=now.to_json(), what_if=then.to_json())


def compare_decisions(context: Context, request: CompareDecisions) -> Comparison:
    """Raises as `what_if.situations_of`."""
    compared = what_if.ask(
        context.store, context.app.planes, request.topic, request.changes, frozenset(request.lanes)
    )
    return Comparison.model_validate(evaluations.comparison(compared))


SHOW_SITUATIONS = report(
    "decisions situations",
    "/topics/{topic}/situations",
    ShowSituations,
    SituationsAnswer,
    show_situations,
    method="POST",
    is_command=False,
)
COMPARE_DECISIONS = report(
    "decisions compare",
    "/topics/{topic}/decide",
    CompareDecisions,
    Comparison,
    compare_decisions,
    method="POST",
    is_command=False,
)
ACTIONS = (SHOW_SITUATIONS, COMPARE_DECISIONS)
