"""Evaluates a topic as it is now, under the policy in force and under another policy."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from controller.actions.action import report
from controller.actions.context import Context
from controller.actions.fields import ParameterValues
from controller.actions.responses import Document
from controller.domain.decision import Lane
from controller.domain.evaluation_input import EvaluationInput
from controller.questions import evaluations
from controller.questions.question import TopicQuestion
from controller.services import what_if


class ShowSituations(TopicQuestion):
    """Show the complete evaluation inputs of the topic, under the policy in force and under another policy."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"changes": {"max_segments": 16}}]})

    changes: ParameterValues = Field(
        {}, max_length=100, description="Parameters that differ.", examples=[{"max_segments": 16}]
    )


class CompareDecisions(ShowSituations):
    """Evaluate the topic as it is now, under the policy in force and under another policy. Writes nothing."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"changes": {"max_segments": 16}, "lanes": ["load"]}]}
    )

    lanes: Annotated[list[Lane], Field(min_length=1, max_length=3)] = list(Lane)


class SituationsAnswer(Document):
    """Two evaluation inputs, each as canonical text, as printed by `cleave decide --print-snapshot`."""

    topic: str = Field(examples=["topic://acme/shop/orders"])
    in_force: str
    what_if: str

    @property
    def situations(self) -> tuple[EvaluationInput, EvaluationInput]:
        """Evaluation inputs under the policy in force, and under the other policy."""
        return EvaluationInput.from_json(self.in_force), EvaluationInput.from_json(self.what_if)


class Verdict(BaseModel):
    """Result of an evaluation: decisions, refusals with their reasons and distances from an action, and the end of its validity."""

    decisions: list[dict[str, Any]] = Field(
        examples=[[{"kind": "split", "segment_id": 0, "reason": "msgRateIn"}]]
    )
    refusals: list[dict[str, Any]] = Field(
        examples=[[{"segment_id": 1, "lane": "merge", "reason": "merge-cooldown"}]]
    )
    valid_until: datetime | int | None = Field(
        description="Null: valid until an input changes. A number of milliseconds if the time is beyond the calendar."
    )


class ChangedParameter(BaseModel):
    """A parameter under both policies."""

    parameter: str = Field(examples=["max_segments"])
    was: Any = Field(examples=[8])
    value: Any = Field(examples=[16])


class Comparison(Document):
    """The evaluations under both policies."""

    topic: str = Field(examples=["topic://acme/shop/orders"])
    epoch: int = Field(examples=[7])
    at: datetime | int | None = Field(examples=["2026-11-21T03:00:00Z"])
    lanes: list[str] = Field(examples=[["load"]])
    changes: list[ChangedParameter]
    is_same: bool
    in_force: Verdict
    what_if: Verdict
    difference: dict[str, Any] = Field(
        description="Decisions and refusals of only one evaluation, by its name."
    )


def show_situations(context: Context, request: ShowSituations) -> SituationsAnswer:
    """Return both evaluation inputs as canonical text; they are equal if nothing differs in `changes`. Raises TopicNotFound, NotFound if
    the topic is not live or its data plane is not configured here, InvalidInput for a parameter that is null, and, if `changes` is not
    empty, InvalidPolicy for a changed policy that is not valid or a policy in force that cannot be read.
    """
    in_force, changed = what_if.situations_of(
        context.store, context.app.planes, request.topic, request.changes
    )
    return SituationsAnswer(topic=request.topic, in_force=in_force.to_json(), what_if=changed.to_json())


def compare_decisions(context: Context, request: CompareDecisions) -> Comparison:
    """Return both evaluations, in the requested lanes, and their difference. Raises TopicNotFound, NotFound if the topic is not live or its
    data plane is not configured here, InvalidInput for a parameter that is null, and, if `changes` is not empty, InvalidPolicy for a
    changed policy that is not valid or a policy in force that cannot be read.
    """
    inputs = what_if.situations_of(context.store, context.app.planes, request.topic, request.changes)
    result = what_if.compare(request.topic, *inputs, frozenset(request.lanes))
    return Comparison.model_validate(evaluations.comparison(result))


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
