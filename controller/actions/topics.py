"""Actions on topics: create, delete, and recover the layout from the logs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from controller.actions.action import Action
from controller.actions.context import Context
from controller.actions.fields import ActionRequest, PolicyParameters, Properties, TopicName, TopicRequest
from controller.actions.responses import (
    SEGMENT_COLUMNS,
    OperationResponse,
    Response,
    Row,
    SegmentDocument,
    segment_documents,
)
from controller.actions.rights import Right
from controller.dataplane.registry import PLANE_NAMES
from controller.domain.errors import Terminal
from controller.domain.operation import OperationKind
from controller.domain.policy import PolicyOverride
from controller.services import reconciler, topic_admin
from controller.store.topics import layouts


class CreateTopic(TopicRequest):
    """Create a topic with one or more equal segments. The policy's maximum number of segments does not apply
    to a creation.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "segments": 4,
                    "data_plane": "embedded",
                    "properties": {"team": "billing"},
                    "policy": {"max_segments": 16},
                    "reason": "for the sale",
                }
            ]
        }
    )

    segments: Annotated[
        int, Field(ge=1, le=65_536, description="Number of equal segments at the beginning.")
    ] = 1
    data_plane: str | None = Field(
        None,
        description=f"Data plane of the logs, one of {', '.join(PLANE_NAMES)}. None: CLEAVE_SERVE_DATA_PLANE.",
    )
    properties: Properties = Field(
        default={}, description="Names and texts of properties.", examples=[{"team": "billing"}]
    )
    policy: PolicyParameters = Field(
        default={}, description="Parameters that the topic overrides.", examples=[{"max_segments": 16}]
    )


class DeleteTopic(TopicRequest):
    """Delete a topic and all its logs, unread messages included.

    The topic accepts no further request; reshapes in progress end first.
    """


class DeletionResponse(OperationResponse):
    """The operation that deletes a topic."""

    segments: list[SegmentDocument] | None = Field(
        None,
        description="Segments that the topic would lose, in a dry run; null otherwise, and for a repeated request.",
    )

    def preview(self) -> tuple[str, Sequence[Row]]:
        """Return a sentence about the number of segments that the topic would lose, and these segments as rows; those of any operation for
        a repeated request.
        """
        if self.segments is None:
            return super().preview()
        rows = [segment.model_dump(include=set(SEGMENT_COLUMNS)) for segment in self.segments]
        return f"{self.topic} would lose {len(rows)} segments and all their messages", rows


class RecoverTopic(ActionRequest):
    """Compare a topic's logs with the database, and rebuild the layout from the logs if the logs are ahead."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"data_plane": "pulsar"}]})

    topic: TopicName
    data_plane: str | None = Field(
        None,
        description="Data plane with the logs of a topic that is not in the database.",
        examples=["pulsar"],
    )


class RecoveryFinding(BaseModel):
    """A difference between the logs of a topic and the database."""

    model_config = ConfigDict(from_attributes=True)

    kind: str = Field(description="A kind of docs/runbook/CleaveTopicHeld.md.", examples=["logs-ahead"])
    backing_topic: str = Field(description="Empty for a finding about the whole topic.")
    segment_id: int | None
    subscription: str | None
    operation_id: int | None = Field(description="Operation that repairs the difference.")
    error: str | None = Field(
        description="Reason why the difference was not repaired; null if it was repaired."
    )
    reason: str | None = Field(description="Evidence for the finding.")


class RecoveryResponse(Response):
    """A topic after its recovery, or as a dry run saw it."""

    replaces_log: ClassVar[bool] = True

    topic: str = Field(examples=["topic://acme/shop/orders"])
    epoch: int = Field(description="-1 for a topic that is not in the database.", examples=[12])
    held_reason: str | None = Field(
        description="Reason why the topic is held, so that nothing acts on it; null if it is not held."
    )
    findings: list[RecoveryFinding]

    def sentence(self) -> str:
        """Return a sentence with the epoch of the topic and the number of findings."""
        epoch = "not in the database" if self.epoch < 0 else f"epoch {self.epoch}"
        return f"{self.topic}: {epoch}, {len(self.findings)} finding(s)"

    def rows(self) -> Sequence[Row]:
        """Return one row for each finding. A reason that equals the error is left out."""
        columns = ("kind", "segment_id", "subscription", "backing_topic", "reason", "error")
        rows = [{name: getattr(finding, name) for name in columns} for finding in self.findings]
        return [row | ({"reason": None} if row["reason"] == row["error"] else {}) for row in rows]

    def demand_done(self, wait_seconds: float) -> None:  # noqa: ARG002 - callers do not wait for a recovery
        """Raise Terminal, with the first reason, for a topic that is held or that the recovery could not repair.
        Does nothing in a dry run.
        """
        errors = [finding.error for finding in self.findings if finding.error is not None]
        reason = next(iter(errors), self.held_reason)
        if reason is not None and not self.dry_run:
            raise Terminal(f"nothing acts on {self.topic}: {reason}; see docs/runbook/CleaveTopicHeld.md")


def create(context: Context, request: CreateTopic) -> OperationResponse:
    """Write the intent to create the topic, and return its operation after the wait that the context allows. Raises
    TopicExists, InvalidInput (also for a policy that does not fit the levels above), NotFound if the data plane lacks
    the namespace, Unsupported for a data plane that is not configured here, LostRace if another topic used the name in
    the meantime, and Conflict if the request key was used for another request.
    """
    intent = topic_admin.create_topic(
        context.store,
        context.app.planes,
        request.topic,
        context.journal_request(request.reason),
        data_plane=request.data_plane or context.app.settings.serve_data_plane,
        segments=request.segments,
        policy=PolicyOverride.from_document(request.policy) if request.policy else None,
        properties=request.properties,
    )
    return context.respond(OperationResponse, intent)


def delete(context: Context, request: DeleteTopic) -> DeletionResponse:
    """Write the intent to delete the topic, which may still be being created, and return its operation after the wait
    that the context allows. A dry run also returns the segments that the topic would lose, active and sealed, unless the
    request is repeated, so that nothing would be lost. Raises TopicNotFound, TopicNotLive if the topic is being deleted
    already, TopicHeld if the topic is held or not verified, and Conflict if the request key was used for another topic
    or kind of operation.
    """
    intent = topic_admin.delete_topic(context.store, request.topic, context.journal_request(request.reason))
    segments = None
    if context.dry_run and not intent.repeated:
        with context.store.transaction() as tx:
            segments = segment_documents(layouts.load_layout(tx, intent.operation.topic_id))
    return context.respond(DeletionResponse, intent, segments=segments)


def recover(context: Context, request: RecoverTopic) -> RecoveryResponse:
    """Compare the topic's logs with the database, repair the differences, and return them; a difference that was
    not repaired has an `error`. If the logs are ahead, the layout is rebuilt from them, or the topic is held. The topic
    counts as unverified until the comparison has succeeded. A dry run changes nothing.

    A topic that is not in the database is added if the data plane `data_plane` has logs of it; otherwise TopicNotFound is
    raised. Also raises Unsupported if the data plane is not configured here or keeps layouts, DataPlaneUnavailable if a
    log does not answer, and TopicHeld, SegmentBusy or LostRace if the repair of a terminated log cannot be intended.
    """
    recovery = reconciler.recover(
        context.store,
        context.app.planes,
        request.topic,
        actor=context.caller.actor,
        data_plane=request.data_plane,
        dry_run=context.dry_run,
    )
    return RecoveryResponse(
        dry_run=context.dry_run,
        topic=recovery.topic,
        epoch=recovery.epoch,
        held_reason=recovery.held_reason,
        findings=[RecoveryFinding.model_validate(finding) for finding in recovery.findings],
    )


ACTIONS = (
    Action(
        "topics create",
        "/topics/{topic}",
        Right.ADMINISTER,
        CreateTopic,
        OperationResponse,
        create,
        method="PUT",
        operation_kinds=(OperationKind.CREATE, OperationKind.ATTACH),
    ),
    Action(
        "topics delete",
        "/topics/{topic}",
        Right.ADMINISTER,
        DeleteTopic,
        DeletionResponse,
        delete,
        method="DELETE",
        confirms="Delete {topic} with all its segments and messages?",
        operation_kinds=(OperationKind.DELETE,),
    ),
    Action(
        "topics recover", "/topics/{topic}/recover", Right.ADMINISTER, RecoverTopic, RecoveryResponse, recover
    ),
)
