"""Actions on topics: create and delete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import ConfigDict, Field

from controller.actions.action import Action
from controller.actions.context import Context
from controller.actions.fields import PolicyParameters, Properties, TopicRequest
from controller.actions.responses import (
    SEGMENT_COLUMNS,
    OperationResponse,
    Row,
    SegmentDocument,
    segment_documents,
)
from controller.actions.rights import Right
from controller.dataplane.registry import PLANE_NAMES
from controller.domain.operation import OperationKind
from controller.domain.policy import PolicyOverride
from controller.services import topic_admin
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

    def sentence(self) -> str:
        """Return a sentence about the operation; for a dry run, about the number of segments that the topic would lose."""
        if self.segments is None:
            return super().sentence()
        return f"{self.topic} would lose {len(self.segments)} segments and all their messages"

    def rows(self) -> Sequence[Row]:
        """Return the segments that the topic would lose for a dry run, otherwise the operation as one row."""
        if self.segments is None:
            return super().rows()
        return [segment.model_dump(include=set(SEGMENT_COLUMNS)) for segment in self.segments]


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
)
