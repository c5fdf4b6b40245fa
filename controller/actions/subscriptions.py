"""Actions on subscriptions: create, delete, set sharing, seek."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from sqlalchemy import Connection

from controller.actions.action import Action
from controller.actions.context import Context
from controller.actions.fields import ActionRequest, SubscriptionName, TopicName, TopicRequest
from controller.actions.responses import (
    CancelledSeeks,
    OperationDocument,
    OperationResponse,
    Response,
    Row,
    operation_fields,
)
from controller.actions.rights import Right
from controller.domain.errors import InvalidInput, InvalidPolicy
from controller.domain.operation import OperationKind
from controller.domain.policy import UnreadablePolicy
from controller.domain.seek_target import parse_seek_target
from controller.domain.subscription_consumers import SubscriptionConsumers
from controller.services import subscription_admin, subscription_consumers
from controller.services.subscription_admin import MOST_RELEASE_SECONDS
from controller.store.journal.request_keys import Intent
from controller.store.topics import policies, topics
from controller.store.topics.subscriptions import SubscriptionKind, SubscriptionStart
from controller.store.topics.topics import TopicRow

Consumers = Annotated[
    SubscriptionConsumers, BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value)
]
CONSUMERS = (
    "cleave: consumers register with Cleave; stock: standard Pulsar consumers of type Failover or Exclusive, "
    "which gates at the broker keep in key order over splits and merges."
)
MOST_CURSORS = 1_000
"""Maximum number of cursors that a dry run of a seek lists."""
_PATH = "/topics/{topic}/subscriptions/{subscription}"
_CREATION = (OperationKind.SUBSCRIPTION_CREATE,)


class SubscriptionRequest(TopicRequest):
    """A request about one subscription."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"reason": "no application reads it"}]})

    subscription: SubscriptionName


class CreateSubscription(SubscriptionRequest):
    """Create a subscription. It reads every segment that still exists, sealed ones included."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"kind": "QUEUE", "from": "latest", "reason": "for the new workers"}]
        },
        populate_by_name=True,
    )

    kind: Annotated[
        SubscriptionKind, BeforeValidator(lambda value: value.upper() if isinstance(value, str) else value)
    ] = Field(
        SubscriptionKind.STREAM,
        description="stream: each bucket is read in order by one consumer; queue: messages go to any consumer; checkpoint: the application stores positions.",
    )
    start: Annotated[
        SubscriptionStart, BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value)
    ] = Field(
        SubscriptionStart.EARLIEST,
        alias="from",
        description="earliest: the first message of every segment that still exists; latest: after all messages published so far.",
    )
    consumers: Consumers | None = Field(
        None,
        description=f"{CONSUMERS} None: the policy's subscription_consumers for a stream, cleave otherwise.",
        examples=["stock"],
    )


class DeleteSubscription(SubscriptionRequest):
    """Delete a subscription with its consumers and its positions on every segment."""


class SetSharing(ActionRequest):
    """Set which consumers read a stream subscription, and how they share its segments. A field that is null
    keeps its value.
    """

    model_config = ConfigDict(json_schema_extra={"examples": [{"parents_block": True, "drain_consumers": 4}]})

    topic: TopicName
    subscription: SubscriptionName
    parents_block: bool | None = Field(
        None,
        description="True: a segment waits until its ancestors are drained. False: less lag, but no order across a split.",
        examples=[True],
    )
    drain_consumers: Annotated[int, Field(ge=1, le=65_536)] | None = Field(
        None,
        description="Maximum number of consumers that share the entry buckets of a sealed segment until it is drained.",
    )
    consumers: Consumers | None = Field(
        None, description=f"{CONSUMERS} Changes only while nobody reads.", examples=["stock"]
    )


class SeekSubscription(SubscriptionRequest):
    """Move a subscription to another position, on every segment and for all its consumers.

    Consumers first release their buckets; acknowledgements of messages that they had read are refused. Sealed
    segments with messages after the position are read again, before their successors. Of two seeks, the later
    one waits for the earlier one, and determines the position.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"to": "2026-11-22T10:00:00Z", "release_seconds": 30.0, "reason": "read the day again"}
            ]
        }
    )

    to: str = Field(
        max_length=100,
        description="Position: earliest, latest (skip all messages), or an instant such as 2026-11-22T10:00:00Z; for a checkpoint group: kept.",
        examples=["earliest", "latest", "2026-11-22T10:00:00Z"],
    )
    release_seconds: Annotated[float, Field(ge=0, le=MOST_RELEASE_SECONDS)] | None = Field(
        None,
        description="Seconds that consumers have to release their buckets. None: the grace period of consumers.",
    )


class CancelSeek(SubscriptionRequest):
    """Cancel the seeks that wait for consumers or for unreachable logs. The subscription continues at its
    present position.
    """


class SharingResponse(Response):
    """The sharing that was set."""

    topic: str = Field(examples=["topic://acme/shop/orders"])
    subscription: str = Field(examples=["billing"])
    parents_block: bool | None = Field(description="Null: not changed.", examples=[True])
    drain_consumers: int | None = Field(description="Null: not changed.", examples=[4])
    consumers: SubscriptionConsumers | None = Field(
        None, description="Null: not changed.", examples=["stock"]
    )

    def sentence(self) -> str:
        return f"{self.topic}: sharing of {self.subscription} {'would be' if self.dry_run else 'is'} set"

    def rows(self) -> Sequence[Row]:
        return [self.model_dump(exclude={"dry_run"})]


class CursorDocument(BaseModel):
    """A position of a subscription, which a seek moves."""

    model_config = ConfigDict(from_attributes=True)

    segment_id: int = Field(examples=[0])
    range_start: int = Field(examples=[32768])
    is_sealed: bool
    is_drained: bool
    backlog: int | None = Field(description="Number of unacknowledged messages.", examples=[120])
    readers: list[str] = Field(examples=[["a"]])


class SeekResponse(OperationResponse):
    """The operation that seeks."""

    cursors: list[CursorDocument] | None = Field(
        None,
        description=f"The first {MOST_CURSORS} cursors that would move, in a dry run; null otherwise, and for a repeated request.",
    )
    target: str | None = Field(
        None,
        description="Position that the seek moves to.",
        examples=["to the first message that still exists"],
    )

    def preview(self) -> tuple[str, Sequence[Row]]:
        """Return a sentence about the position to which the subscription would move, and the cursors that would move as rows; those of any
        operation for a repeated request.
        """
        if self.cursors is None:
            return super().preview()
        sentence = f"{self.topic}: {self.parameters.get('subscription')} would go {self.target}"
        return sentence, [cursor.model_dump(exclude={"range_start"}) for cursor in self.cursors]


def create(context: Context, request: CreateSubscription) -> OperationResponse:
    """Write the intent to create the subscription, and return its operation after the wait that the context allows. Raises
    the errors of `intend_creation`.
    """
    return context.respond(OperationResponse, intend_creation(context, request))


def intend_creation(context: Context, request: CreateSubscription) -> Intent:
    """Write and return the intent to create the subscription. If the request names no consumers, a stream subscription
    gets the consumers of the topic's policy, any other `cleave`. A repeated request is not checked again for standard
    consumers.

    Raises TopicNotFound, TopicNotLive, InvalidInput for a name that the data plane does not permit, Conflict if the
    name is taken, also by a subscription that is being deleted, or if the request key was used for another subscription,
    kind of operation, kind of subscription or start, and InvalidPolicy if the policy is needed and not readable (a
    repeated request too). For standard consumers, also raises Conflict unless the kind is STREAM, or if they would read a
    segment before its ancestors, Unsupported if the data plane has no gates or consumers of another type are attached,
    and the errors of the data plane.
    """
    with context.store.transaction() as tx:
        topic = topics.find_topic(tx, request.topic)
        consumers = request.consumers or _consumers_of_policy(tx, topic, request.kind)
    if consumers is SubscriptionConsumers.STOCK and not context.earlier_intent(
        request.topic, _CREATION, request.subscription
    ):
        subscription_consumers.demand_stock(
            context.store, context.app.planes, topic, request.subscription, request.kind
        )
    return subscription_admin.create_subscription(
        context.store,
        request.topic,
        request.subscription,
        context.journal_request(request.reason),
        kind=request.kind,
        from_latest=request.start is SubscriptionStart.LATEST,
        consumers=consumers,
    )


def _consumers_of_policy(tx: Connection, topic: TopicRow, kind: SubscriptionKind) -> SubscriptionConsumers:
    """Return the consumers of a new subscription whose request does not name them: `cleave`, or for a stream
    subscription the topic's policy parameter `subscription_consumers`. Raises InvalidPolicy for a policy that
    cannot be read.
    """
    if kind is not SubscriptionKind.STREAM:
        return SubscriptionConsumers.CLEAVE
    policy = policies.in_force(tx, topic.topic_id)
    if isinstance(policy, UnreadablePolicy):
        raise InvalidPolicy(f"{policy.why}; correct the policy, or name the consumers in the request")
    return SubscriptionConsumers(policy.subscription_consumers)


def delete(context: Context, request: DeleteSubscription) -> OperationResponse:
    """Write the intent to delete the subscription, and return its operation after the wait that the context allows.
    Raises TopicNotFound, TopicNotLive, SubscriptionNotFound, and Conflict if the subscription is being deleted already
    or the request key was used for another subscription or kind of operation.
    """
    journal_request = context.journal_request(request.reason)
    intent = subscription_admin.delete_subscription(
        context.store, request.topic, request.subscription, journal_request
    )
    return context.respond(OperationResponse, intent)


def set_sharing(context: Context, request: SetSharing) -> SharingResponse:
    """Set the given fields of the sharing; a field that is null keeps its value. Return the fields of the request, so a
    field that was not given is null, whatever its value is. All fields are set together or not at all. A subscription
    that is being deleted is accepted.

    Raises InvalidInput if there is nothing to set, TopicNotFound, SubscriptionNotFound, and Conflict if standard
    consumers read the subscription and `parents_block` is False. If the given consumers differ from the present kind,
    also raises TopicNotLive, Conflict while a consumer reads or a seek is in progress, and the errors of the data plane;
    for standard consumers, also Conflict unless the kind is STREAM, or while a sealed segment is not read to its end
    (unless the gates of all segments with a sealed ancestor are closed already), and Unsupported if the data plane has no
    gates or consumers of another type are attached.
    """
    if request.parents_block is None and request.drain_consumers is None and request.consumers is None:
        raise InvalidInput("nothing to set; give parents_block, drain_consumers or consumers")
    subscription_consumers.set_sharing(
        context.store,
        context.app.planes,
        request.topic,
        request.subscription,
        consumers=request.consumers,
        parents_block=request.parents_block,
        drain_consumers=request.drain_consumers,
    )
    return SharingResponse(**request.model_dump(), dry_run=context.dry_run)


def seek(context: Context, request: SeekSubscription) -> SeekResponse:
    """Write the intent to move the subscription, and return its operation after the wait that the context allows.
    Consumers first release their buckets, within `release_seconds` (None: the grace period of the settings). A dry run
    also reads the first `MOST_CURSORS` cursors that would move from the data plane, with its errors, and Unsupported if
    it is not configured here; not for a repeated request, which would move none.

    Raises InvalidInput for an invalid target, TopicNotFound, TopicNotLive, SubscriptionNotFound, Unsupported if a broker
    keeps the layout, and Conflict for a target that the kind of subscription does not permit, if standard consumers
    would read a segment before its ancestors, or if the request key was used for another target, subscription or kind
    of operation. A repeated request returns the first seek.
    """
    target, release_seconds = parse_seek_target(request.to), request.release_seconds
    if release_seconds is None:
        release_seconds = context.app.settings.consumer_grace_seconds
    intent = subscription_admin.seek_subscription(
        context.store,
        request.topic,
        request.subscription,
        target,
        context.journal_request(request.reason),
        release_seconds=release_seconds,
    )
    cursors = None
    if context.dry_run and not intent.repeated:
        moves = subscription_admin.cursors_to_move(
            context.store, context.app.planes, request.topic, request.subscription, limit=MOST_CURSORS
        )
        cursors = [CursorDocument.model_validate(cursor) for cursor in moves]
    return context.respond(SeekResponse, intent, cursors=cursors, target=target.sentence)


def cancel_seek(context: Context, request: CancelSeek) -> CancelledSeeks:
    """Request the abort of the subscription's seeks that wait for consumers (some may have released their buckets), for
    an earlier seek, or for the data plane to stop readers; seeks that are being aborted already are returned too, unless
    they have stopped readers. Wait for the end of each operation for at most the wait that the context allows, and return
    the operations as they are then. A dry run does not wait. Raises TopicNotFound, TopicNotLive, SubscriptionNotFound,
    and Conflict if there is no such seek.
    """
    operations = subscription_admin.give_up_seek(
        context.store,
        request.topic,
        request.subscription,
        actor=context.caller.actor,
        reason=context.reason_of(request.reason),
    )
    if not context.dry_run:
        operations = [context.wait_for(operation) for operation in operations]
    documents = [OperationDocument(**operation_fields(operation)) for operation in operations]
    return CancelledSeeks(dry_run=context.dry_run, operations=documents)


ACTIONS = (
    Action(
        "subscriptions create",
        _PATH,
        Right.ADMINISTER,
        CreateSubscription,
        OperationResponse,
        create,
        method="PUT",
        operation_kinds=_CREATION,
    ),
    Action(
        "subscriptions delete",
        _PATH,
        Right.ADMINISTER,
        DeleteSubscription,
        OperationResponse,
        delete,
        method="DELETE",
        operation_kinds=(OperationKind.SUBSCRIPTION_DELETE,),
    ),
    Action(
        "subscriptions set", f"{_PATH}/sharing", Right.ADMINISTER, SetSharing, SharingResponse, set_sharing
    ),
    Action(
        "subscriptions seek",
        f"{_PATH}/seek",
        Right.ADMINISTER,
        SeekSubscription,
        SeekResponse,
        seek,
        default_wait_seconds=300.0,
        operation_kinds=(OperationKind.SEEK,),
    ),
    Action(
        "subscriptions cancel-seek",
        f"{_PATH}/seek",
        Right.ADMINISTER,
        CancelSeek,
        CancelledSeeks,
        cancel_seek,
        method="DELETE",
        waits=True,
    ),
)
