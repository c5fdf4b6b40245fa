"""Candidates, the history of policy parameters, and the parameters in force."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, Field

from controller.actions.action import report
from controller.actions.context import Context
from controller.actions.fields import PolicyLevel as LevelName
from controller.actions.responses import Answer, Row
from controller.domain.formatting import exact
from controller.domain.names import LONGEST_TOPIC
from controller.domain.policy import PolicyLevel
from controller.domain.whole_numbers import MOST
from controller.questions.question import ONE_TOPIC, Filter, Question, QuestionRequest, TopicQuestion
from controller.services import policy_admin
from controller.store.decisions.candidates import CandidateState, parameters_text
from controller.store.postgres.snapshots import snapshot
from controller.store.topics import inspector_reads


def _with_parameters(row: dict[str, Any], _now: datetime) -> dict[str, Any]:
    """Return the row with a column `parameters`: the parameters of the candidate as text."""
    return {**row, "parameters": parameters_text(row["override"])}


class ShowPolicy(QuestionRequest):
    """Show the parameters that a level sets; for the cluster, all parameters."""

    level: LevelName


class StoredPolicy(Answer):
    """Parameters that a level sets; for the cluster, all parameters."""

    level: str = Field(examples=["namespace"])
    name: str | None = Field(description="Namespace or topic; null for the cluster.", examples=["acme/shop"])
    parameters: dict[str, Any] = Field(examples=[{"max_segments": 16}])

    def sentence(self) -> str:
        """Return one sentence about the answer."""
        return f"{self.level} {self.name or ''}".rstrip()

    def rows(self) -> Sequence[Row]:
        """Return the rows of the answer's table."""
        return [
            {"parameter": parameter, "value": exact(value)} for parameter, value in self.parameters.items()
        ]


class ShowEffectivePolicy(TopicQuestion):
    """Show all parameters in force for a topic, with their levels."""


class ParameterInForce(BaseModel):
    """A parameter and its level: topic, namespace, cluster or default."""

    parameter: str = Field(examples=["max_segments"])
    value: Any = Field(examples=[16])
    level: str = Field(examples=["namespace"])


class EffectivePolicy(Answer):
    """All parameters in force for a topic."""

    topic: str = Field(examples=["topic://acme/shop/orders"])
    parameters: list[ParameterInForce]

    def sentence(self) -> str:
        """Return one sentence about the answer."""
        return self.topic

    def rows(self) -> Sequence[Row]:
        """Return the rows of the answer's table."""
        return [{**parameter.model_dump(), "value": exact(parameter.value)} for parameter in self.parameters]


def show_policy(context: Context, request: ShowPolicy) -> StoredPolicy:
    """Return the stored policy of the level. A topic or namespace has only the parameters that it sets, possibly none; an unknown namespace
    has none. The cluster has every parameter, with defaults for the parameters that it does not set, unless its stored policy is not
    readable: then as stored. Raises TopicNotFound for a topic that does not exist.
    """
    kind = policy_admin.kind_of(request.level)
    name = None if kind is PolicyLevel.CLUSTER else request.level
    with snapshot(context.store) as tx:
        if kind is PolicyLevel.TOPIC:
            inspector_reads.find_topic(tx, request.level)
        return StoredPolicy(level=kind, name=name, parameters=inspector_reads.stored_policy(tx, kind, name))


def show_effective_policy(context: Context, request: ShowEffectivePolicy) -> EffectivePolicy:
    """Return every parameter in force for the topic, with the level that sets it. Values are as stored, and not checked. Raises
    TopicNotFound.
    """
    with snapshot(context.store) as tx:
        parameters = inspector_reads.effective_policy(tx, inspector_reads.find_topic(tx, request.topic))
    return EffectivePolicy(
        topic=request.topic, parameters=[ParameterInForce(**parameter) for parameter in parameters]
    )


LIST_CANDIDATES = Question(
    "policy candidates",
    "/policies/candidates",
    "inspect.policy_candidates",
    "List proposed policies, newest first: their parameters, outcomes, and the regret of both policies.",
    {"candidate_id": int},
    {
        "topic": ONE_TOPIC,
        "state": Filter("state = :state", CandidateState, "Only candidates in this state.", ["shadow"]),
        "run_id": Filter(
            "run_id = ANY (CAST(:run_id AS bigint[]))",
            Annotated[int, Field(ge=0, le=MOST)],
            "Only candidates that have one of these backtests as evidence.",
            [[5]],
            most=1000,
        ),
    },
    descending=True,
    table=(
        "candidate_id",
        "topic",
        "state",
        "parameters",
        "proposed_by",
        "proposed_at",
        "regret",
        "live_regret",
        "run_id",
        "shadow_decisions",
    ),
    present=_with_parameters,
)
LIST_PARAMETER_CHANGES = Question(
    "policy history",
    "/policies/history",
    "inspect.policy_history",
    """List changes of policy parameters, newest first. `was` (or `value`) is null if the level did not set the parameter before (or after)
    the change.
    """,
    {"change_id": int, "parameter": str},
    {
        "level": Filter("level = :level", PolicyLevel, "Only changes at this kind of level."),
        "name": Filter(
            "name = :name",
            Annotated[str, Field(max_length=LONGEST_TOPIC)],
            "Only changes of this namespace or topic.",
            ["acme/shop"],
        ),
    },
    descending=True,
    table=("changed_at", "level", "name", "actor", "parameter", "was", "value"),
    exact=("was", "value"),
)
QUESTIONS = (LIST_CANDIDATES, LIST_PARAMETER_CHANGES)
SHOW_POLICY = report("policy get", "/policies/{level}", ShowPolicy, StoredPolicy, show_policy)
SHOW_EFFECTIVE_POLICY = report(
    "policy effective", "/topics/{topic}/policy", ShowEffectivePolicy, EffectivePolicy, show_effective_policy
)
ACTIONS = (SHOW_POLICY, SHOW_EFFECTIVE_POLICY)
