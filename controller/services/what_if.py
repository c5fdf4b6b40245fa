"""Evaluates a topic under the policy in force and under another policy. Writes nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection

from controller.dataplane.base import DataPlane
from controller.domain.decision import Evaluation, Lane
from controller.domain.errors import InvalidInput, InvalidPolicy, NotFound
from controller.domain.evaluation_input import EvaluationInput
from controller.domain.evaluator import decide
from controller.domain.policy import AutoScalePolicy, UnreadablePolicy, validate
from controller.store.decisions import evaluation_inputs
from controller.store.postgres.engine import Store
from controller.store.postgres.snapshots import snapshot
from controller.store.topics import topics
from controller.store.topics.topics import TopicRow


@dataclass(frozen=True, slots=True)
class WhatIf:
    """One topic under the policy in force (inputs `now`, evaluation `in_force`) and under another policy
    (inputs `then`, evaluation `what_if`), both from one snapshot and at one instant.
    """

    topic: str
    lanes: frozenset[Lane]
    now: EvaluationInput
    then: EvaluationInput
    in_force: Evaluation
    what_if: Evaluation

    @property
    def changes(self) -> list[dict[str, Any]]:
        """The parameters that differ: `parameter`, `was`, `value`."""
        before, after = self.now.policy.to_document(), self.then.policy.to_document()
        return [
            {"parameter": parameter, "was": before[parameter], "value": after[parameter]}
            for parameter in after
            if before[parameter] != after[parameter]
        ]


def compare(topic: str, now: EvaluationInput, then: EvaluationInput, lanes: Collection[Lane]) -> WhatIf:
    """Evaluate the inputs `now`, under the policy in force, and `then`, under the other policy, and return
    both evaluations.
    """
    evaluated_lanes = frozenset(lanes)
    return WhatIf(
        topic, evaluated_lanes, now, then, decide(now, evaluated_lanes), decide(then, evaluated_lanes)
    )


def situations_of(
    store: Store, planes: Mapping[str, DataPlane], topic: str, changes: Mapping[str, Any]
) -> tuple[EvaluationInput, EvaluationInput]:
    """Return the topic's inputs under the policy in force and under the policy with `changes`, the changed values by
    parameter, from one read-only snapshot and at one instant. Without `changes` both inputs are the same. Raises
    TopicNotFound, NotFound if the topic is not live or its data plane is not configured here, InvalidInput for a
    parameter with the value None, InvalidPolicy if the changed policy is not valid or, with `changes`, the policy in
    force cannot be read, and the errors of `Store.transaction`.
    """
    with snapshot(store) as tx:
        row = topics.find_topic(tx, topic)
        now = present_situation(tx, row, planes)
        then = present_situation(tx, row, planes, instead=changed(now.policy, changes)) if changes else now
    return now, replace(then, now=now.now)


def present_situation(
    tx: Connection,
    topic: TopicRow,
    planes: Mapping[str, DataPlane],
    instead: AutoScalePolicy | None = None,
) -> EvaluationInput:
    """Return the topic's present evaluation inputs, with the policy in force or, if it is given, with the policy
    `instead`, which is not validated. Writes nothing. Raises NotFound if the topic is not live, or if its data plane
    is not in `planes`.
    """
    inputs = evaluation_inputs.load_evaluation_inputs(
        tx,
        [topic.topic_id],
        {name: plane.capabilities for name, plane in planes.items()},
        instead={} if instead is None else {topic.topic_id: instead},
    )
    if topic.topic_id not in inputs:
        raise NotFound(
            f"topic {topic.name} is {topic.state} on data plane {topic.data_plane!r}; only a live topic on a data plane "
            "that is configured here can be evaluated"
        )
    return inputs[topic.topic_id]


def demand_values(changes: Mapping[str, Any]) -> None:
    """Raise InvalidInput for a parameter that is removed (None): the resulting value would depend on the
    levels of policy.
    """
    for parameter, value in changes.items():
        if value is None:
            raise InvalidInput(f"{parameter}=null: give the value to ask about")


def changed(policy: AutoScalePolicy, changes: Mapping[str, Any]) -> AutoScalePolicy:
    """Return a copy of the policy with `changes`, the changed values by parameter; the copy is validated as a whole.
    Raises InvalidInput for a parameter with the value None, because the resulting value would depend on the levels of
    policy. Raises InvalidPolicy for an unknown parameter, a value of a wrong type, a policy that is not valid, and an
    `UnreadablePolicy` as `policy`.
    """
    if isinstance(policy, UnreadablePolicy):
        raise InvalidPolicy(f"the policy in force cannot be read ({policy.why}); set it right first")
    demand_values(changes)
    changed_policy = AutoScalePolicy.from_document({**policy.to_document(), **changes})
    validate(changed_policy)
    return changed_policy
