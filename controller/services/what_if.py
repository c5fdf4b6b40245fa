"""What would be decided for a topic now, and what under another policy: asked, and nothing written."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, text

from controller.dataplane.base import DataPlane
from controller.domain.decision import Evaluation, Lane
from controller.domain.errors import InvalidInput, InvalidPolicy, NotFound
from controller.domain.evaluator import ALL_LANES, decide
from controller.domain.policy import AutoScalePolicy, UnreadablePolicy, validate
from controller.domain.situation import Situation
from controller.store.decisions import situations
from controller.store.postgres.engine import Store
from controller.store.topics import topics
from controller.store.topics.topics import TopicRow


@dataclass(frozen=True, slots=True)
class WhatIf:
    """One topic under the policy in force and under another, both of one snapshot and at one instant, and what each says."""

    topic: str
    lanes: frozenset[Lane]
    now: Situation
    then: Situation
    in_force: Evaluation
    what_if: Evaluation

    @property
    def changes(self) -> list[dict[str, Any]]:
        """The parameters that differ: `parameter`, `was`, `value`."""
        was, becomes = self.now.policy.to_document(), self.then.policy.to_document()
        return [
            {"parameter": parameter, "was": was[parameter], "value": becomes[parameter]}
            for parameter in becomes
            if was[parameter] != becomes[parameter]
        ]


def ask(
    store: Store,
    planes: Mapping[str, DataPlane],
    topic: str,
    changes: Mapping[str, Any],
    lanes: Collection[Lane] = ALL_LANES,
) -> WhatIf:
    """Ask both. Raises as `situations_of`."""
    return compare(topic, *situations_of(store, planes, topic, changes), lanes)


def compare(topic: str, now: Situation, then: Situation, lanes: Collection[Lane] = ALL_LANES) -> WhatIf:
    """What is decided on each."""
    asked = frozenset(lanes)
    return WhatIf(topic, asked, now, then, decide(now, asked), decide(then, asked))


def situations_of(
    store: Store, planes: Mapping[str, DataPlane], topic: str, changes: Mapping[str, Any]
) -> tuple[Situation, Situation]:
    """The topic under the policy in force and under the changed one, of one snapshot and at one instant. Raises TopicNotFound,
    NotFound, InvalidInput for a parameter that is taken back, InvalidPolicy.
    """
    with store.transaction() as tx:
        tx.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"))
        row = topics.find_topic(tx, topic)
        now = present_situation(tx, row, planes)
        then = present_situation(tx, row, planes, instead=changed(now.policy, changes)) if changes else now
    return now, replace(then, now=now.now)


def present_situation(
    tx: Connection,
    topic: TopicRow,
    planes: Mapping[str, DataPlane],
    instead: AutoScalePolicy | None = None,
) -> Situation:
    """The topic now, with the policy in force or with another `instead`. Raises NotFound where none can be decided on."""
    found = situations.load_situations(
        tx,
        [topic.topic_id],
        {name: plane.capabilities for name, plane in planes.items()},
        instead={} if instead is None else {topic.topic_id: instead},
    )
    if topic.topic_id not in found:
        raise NotFound(
            f"topic {topic.name} is {topic.state} on data plane {topic.data_plane!r}; only a live topic on a data plane "
            "that is configured here has a situation to decide on"
        )
    return found[topic.topic_id]


def demand_values(changes: Mapping[str, Any]) -> None:
    """Refuse a parameter that is taken back: what it would then be is a question of the levels. Raises InvalidInput."""
    for parameter, value in changes.items():
        if value is None:
            raise InvalidInput(f"{parameter}=null: give the value to ask about")


def changed(policy: AutoScalePolicy, changes: Mapping[str, Any]) -> AutoScalePolicy:
    """The policy with other parameters, checked as a whole. Raises InvalidInput for a parameter that is taken back, InvalidPolicy for
    the rest.
    """
    if isinstance(policy, UnreadablePolicy):
        raise InvalidPolicy(f"the policy in force cannot be read ({policy.why}); set it right first")
    demand_values(changes)
    then = AutoScalePolicy.from_document({**policy.to_document(), **changes})
    validate(then)
    return then
