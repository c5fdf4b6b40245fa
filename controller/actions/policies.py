"""Actions on auto-scaling policies: set and remove parameters at a level, which is the cluster, a namespace
or a topic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from controller.actions.action import Action
from controller.actions.context import Context
from controller.actions.fields import ActionRequest, PolicyLevel, PolicyParameters
from controller.actions.responses import Response, Row
from controller.actions.rights import Right
from controller.domain.formatting import exact, shown
from controller.domain.names import CLUSTER
from controller.domain.policy import PARAMETERS
from controller.services import policy_admin

Document = dict[str, Any]
_PATH = "/policies/{level}"
_NAMED_TOPICS = 5
"""Maximum number of topics that a sentence names."""


class SetPolicy(ActionRequest):
    """Set parameters at a level. The result is checked together with the levels above."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"parameters": {"max_segments": 16, "target_use": None}, "replace": False}]
        }
    )

    level: PolicyLevel
    parameters: Annotated[
        PolicyParameters,
        Field(
            description="Parameters with their values, for example max_segments=16; null removes a parameter. The parameters: "
            f"{', '.join(PARAMETERS)}.",
            examples=[{"max_segments": 16, "target_use": None}],
        ),
    ]
    replace: bool = Field(False, description="Remove the level's other parameters.")


class RemovePolicy(ActionRequest):
    """Remove all parameters that a level sets. The levels above apply again."""

    level: PolicyLevel


class ChangedTopic(BaseModel):
    """A topic whose decisions would differ at once."""

    topic: str = Field(examples=["topic://acme/shop/orders"])
    now: list[str] = Field(description="Actions under the policy in force.", examples=[["split segment 0"]])
    then: list[str] = Field(description="Actions under the changed policy.", examples=[[]])


class Consequences(BaseModel):
    """The topics whose decisions would differ at once."""

    changed_topics: list[ChangedTopic]
    evaluated: int = Field(description="Topics that were evaluated under both policies.", examples=[12])
    topics: int = Field(description="Topics of the level.", examples=[12])

    def sentence(self) -> str:
        """Return a sentence with the number of topics whose decisions would differ, the number of topics of the level and, if
        not all of these were evaluated, of evaluated topics, and at most `_NAMED_TOPICS` names of topics that differ.
        """
        count = len(self.changed_topics)
        names = ", ".join(topic.topic for topic in self.changed_topics[:_NAMED_TOPICS])
        names_text = f": {names}" if names else ""
        if self.evaluated < self.topics:
            return f"of {self.evaluated} evaluated topics among {self.topics}, {count} would have other decisions at once{names_text}"
        return f"{count} of {self.topics} topics would have other decisions at once{names_text}"


class PolicyResponse(Response):
    """A level before and after the change; in a dry run, as the level would be."""

    level: str = Field(examples=["namespace"])
    name: str | None = Field(description="Namespace or topic; null for the cluster.", examples=["acme/shop"])
    before: Document = Field(
        description="Parameters of the level; every parameter for the cluster.",
        examples=[{"max_segments": 8}],
    )
    after: Document = Field(examples=[{"max_segments": 16}])
    consequences: Consequences | None = Field(
        None, description="Topics that the change concerns, in a dry run; null otherwise."
    )

    def sentence(self) -> str:
        """Return a sentence with the changed parameters, their former and new values (`unset` for none), or that nothing changed; for
        a dry run also with the consequences.
        """
        level = self.name or CLUSTER
        changes = ", ".join(
            f"{parameter} from {_value(was)} to {_value(value)}" for parameter, was, value in self._changes()
        )
        if self.consequences is None:
            return f"policy of {level}: {changes or 'nothing changed'}"
        return f"{level} would have {changes or 'the same parameters'}; {self.consequences.sentence()}"

    def title(self) -> str:
        """Return the sentence, also above the rows of a change that is no dry run."""
        return self.sentence()

    def rows(self) -> Sequence[Row]:
        """Return one row for each parameter of the level that changes, with its former and its new value; None for
        a value that the level does not set.
        """
        return [
            {"parameter": parameter, "was": exact(was), "value": exact(value)}
            for parameter, was, value in self._changes()
        ]

    def _changes(self) -> Iterator[tuple[str, Any, Any]]:
        """Yield each parameter of the level that changes, with its former and its new value; None for a value that the
        level does not set.
        """
        for parameter in {**self.before, **self.after}:
            was, value = self.before.get(parameter), self.after.get(parameter)
            if was != value:
                yield parameter, was, value


def _value(value: object) -> str:
    """Return the value of a parameter as text; `unset` for None."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "unset" if value is None else shown(value)


def set_policy(context: Context, request: SetPolicy) -> PolicyResponse:
    """Set parameters at the level (None removes a parameter), with `replace` also remove its other parameters, and return
    the level before and after. A dry run evaluates up to `policy_admin.MOST_TOPICS` topics of the level instead of
    writing. Raises TopicNotFound, TopicNotLive, LostRace, and InvalidPolicy for an unknown parameter, a value of a wrong
    type, or a policy that is not valid together with the levels above.
    """
    return _change(context, request.level, request.parameters, replace=request.replace)


def remove(context: Context, request: RemovePolicy) -> PolicyResponse:
    """Remove all parameters of the level, and return the level before and after; parameters of the cluster get
    their defaults. A dry run evaluates up to `policy_admin.MOST_TOPICS` topics of the level instead of writing.
    Raises TopicNotFound, TopicNotLive, LostRace, and InvalidPolicy for a namespace if the policy of the cluster is not
    readable or not valid.
    """
    return _change(context, request.level, {}, replace=True)


def _change(context: Context, level: str, parameters: Mapping[str, Any], *, replace: bool) -> PolicyResponse:
    """Set the parameters at the level (None removes a parameter; the cluster then has its default) and return the level
    before and after. `replace`: True to remove its other parameters. A dry run writes nothing and locks nothing; it
    evaluates up to `policy_admin.MOST_TOPICS` topics of the level on a snapshot. Raises TopicNotFound, TopicNotLive,
    InvalidPolicy for a document that is not valid by itself or with the levels above, and, outside a dry run, LostRace
    if the level was changed again and again in the meantime. A topic's empty document is not checked.
    """

    def merged(before: Document) -> Document:
        return {**({} if replace else before), **parameters}

    consequences = None
    if context.dry_run:
        # The preview uses a snapshot, so that a dry run neither waits for locks nor holds any.
        preview = policy_admin.preview(context.app.store, context.app.planes, level, merged)
        changed, consequences = preview.changed, _consequences(preview)
    else:
        changed = policy_admin.change(context.store, level, merged, actor=context.caller.actor)
    return PolicyResponse(
        dry_run=context.dry_run,
        level=policy_admin.kind_of(level).value,
        name=None if level == CLUSTER else level,
        before=changed.before,
        after=changed.after,
        consequences=consequences,
    )


def _consequences(preview: policy_admin.Consequences) -> Consequences:
    """Return the consequences of a preview as a document."""
    changed_topics = [
        ChangedTopic(topic=topic, now=list(map(str, now)), then=list(map(str, then)))
        for topic, (now, then) in preview.changed_topics.items()
    ]
    return Consequences(changed_topics=changed_topics, evaluated=preview.evaluated, topics=preview.topics)


ACTIONS = (
    Action(
        "policy set",
        _PATH,
        Right.OPERATE,
        SetPolicy,
        PolicyResponse,
        set_policy,
        cluster_right=Right.ADMINISTER,
    ),
    Action(
        "policy remove",
        _PATH,
        Right.OPERATE,
        RemovePolicy,
        PolicyResponse,
        remove,
        method="DELETE",
        cluster_right=Right.ADMINISTER,
    ),
)
