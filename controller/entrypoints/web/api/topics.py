"""Topics and their subscriptions: list, show, create, delete, and have a subscription go on from somewhere else."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query
from pydantic import BaseModel, ConfigDict, Field

from controller.domain.policy import PolicyOverride
from controller.domain.seek_target import parse_seek_target
from controller.entrypoints.output import operation_document
from controller.entrypoints.web.acting import AtDesk
from controller.entrypoints.web.api.changes import Changing, GivenUp, Intended, OperationNow, Wait, WithReason
from controller.entrypoints.web.api.paging import Asked, Listing, Page, cut
from controller.entrypoints.web.asked import Topic
from controller.entrypoints.web.demands import ADMINISTER, READ, DemandingRoute
from controller.entrypoints.web.paths import PREFIX, TOPIC_PATH, Name
from controller.entrypoints.web.refusals import REFUSALS
from controller.services import topic_admin
from controller.services.topic_admin import MOST_RELEASE_SECONDS
from controller.store.postgres import inspection
from controller.store.postgres.engine import Store
from controller.store.topics import inspected, subscriptions, topics
from controller.store.topics.subscriptions import SubscriptionKind

router = APIRouter(route_class=DemandingRoute, responses=REFUSALS, tags=["topics"])
_COLUMNS = """topic, topic_id, namespace, state, data_plane, epoch, active_segments, sealed_segments, live_operations, created_at,
       last_split_at, last_merge_at, last_rebucket_at, properties"""
_LIST = Listing(
    f"""
    SELECT {_COLUMNS} FROM inspect.topics
     WHERE state <> 'deleted' AND (CAST(:namespace AS text) IS NULL OR namespace = :namespace)
       AND (CAST(:prefix AS text) IS NULL OR starts_with(topic, :prefix))
       AND (CAST(:after_topic AS text) IS NULL OR topic > :after_topic)
     ORDER BY topic LIMIT :limit
    """,
    {"topic": str},
)
_ONE = f"SELECT {_COLUMNS} FROM inspect.topics WHERE topic_id = :topic_id"
_NAMESPACES = Listing(
    """
    SELECT DISTINCT namespace FROM inspect.topics
     WHERE state <> 'deleted' AND (CAST(:prefix AS text) IS NULL OR starts_with(namespace, :prefix))
       AND (CAST(:after_namespace AS text) IS NULL OR namespace > :after_namespace)
     ORDER BY namespace LIMIT :limit
    """,
    {"namespace": str},
)
_SUBSCRIPTIONS = Listing(
    """
    SELECT topic, topic_id, subscription, kind, state, consumers, consumer_names, created_at, created_epoch, parents_block,
           drain_consumers
      FROM inspect.subscriptions
     WHERE topic_id = :topic_id AND (CAST(:after_subscription AS text) IS NULL OR subscription > :after_subscription)
     ORDER BY subscription LIMIT :limit
    """,
    {"subscription": str},
)


class TopicNow(BaseModel):
    """A topic as it is; as `inspect.topics`."""

    topic: str = Field(examples=["topic://acme/shop/orders"])
    topic_id: int
    namespace: str = Field(examples=["acme/shop"])
    state: str = Field(examples=["live"])
    data_plane: str = Field(examples=["embedded"])
    epoch: int = Field(examples=[7])
    active_segments: int
    sealed_segments: int
    live_operations: int
    created_at: datetime = Field(examples=["2026-11-01T09:00:00Z"])
    last_split_at: datetime | None = Field(examples=["2026-11-21T03:00:00Z"])
    last_merge_at: datetime | None
    last_rebucket_at: datetime | None
    properties: dict[str, Any] = Field(examples=[{"team": "billing"}])


class NamespaceNow(BaseModel):
    """A namespace that has a topic."""

    namespace: str = Field(examples=["acme/shop"])


class SubscriptionNow(BaseModel):
    """A subscription and who reads it; as `inspect.subscriptions`."""

    topic: str = Field(examples=["topic://acme/shop/orders"])
    topic_id: int
    subscription: str = Field(examples=["billing"])
    kind: str = Field(examples=["STREAM"])
    state: str = Field(examples=["live"])
    consumers: int
    consumer_names: list[str] = Field(examples=[["a"]])
    created_at: datetime = Field(examples=["2026-11-01T09:00:00Z"])
    created_epoch: int
    parents_block: bool
    drain_consumers: int = Field(examples=[4])


class NewTopic(WithReason):
    """What a topic begins with."""

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

    segments: Annotated[int, Field(ge=1, le=65_536)] = 1
    data_plane: str | None = Field(None, description="CLEAVE_SERVE_DATA_PLANE where left out.")
    properties: dict[str, str] = Field({}, examples=[{"team": "billing"}])
    policy: dict[str, Any] = Field(
        {}, description="Knobs that it overrides.", examples=[{"max_segments": 16}]
    )


class NewSubscription(WithReason):
    """How it is read."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"kind": "QUEUE", "reason": "for the new workers"}]}
    )

    kind: SubscriptionKind = SubscriptionKind.STREAM


class Seek(WithReason):
    """Where a subscription is to go on from, and how long its consumers have to let go of what they read."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"to": "2026-11-22T10:00:00Z", "release_seconds": 30.0, "reason": "read the day again"}
            ]
        }
    )

    to: str = Field(examples=["earliest", "latest", "2026-11-22T10:00:00Z"])
    release_seconds: Annotated[float, Field(ge=0, le=MOST_RELEASE_SECONDS)] | None = Field(
        None, description="The grace period of consumers where left out."
    )


class Sharing(BaseModel):
    """How a stream subscription is shared out over its consumers; what is null stays."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"parents_block": True, "drain_consumers": 4}]})

    parents_block: bool | None = Field(
        None, description="Whether a segment waits until all that it descends from is read.", examples=[True]
    )
    drain_consumers: Annotated[int, Field(ge=1, le=65_536)] | None = Field(
        None, description="So many consumers at most share a sealed segment's entry buckets until it is read."
    )


class Shared(Sharing):
    """What was set."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"parents_block": True, "drain_consumers": 4, "dry_run": False}]}
    )

    dry_run: bool


class Cursor(BaseModel):
    """A position of a subscription, which a seek would move."""

    segment_id: int = Field(examples=[0])
    range_start: int = Field(examples=[32768])
    is_sealed: bool
    is_drained: bool
    backlog: int | None = Field(description="Messages that are not acknowledged.", examples=[120])
    readers: list[str] = Field(examples=[["a"]])


@router.get(f"{PREFIX}/topics", dependencies=[READ], response_model=Page[TopicNow])
def list_topics(
    acting: AtDesk,
    paging: Asked,
    namespace: Annotated[str | None, Query(max_length=1000, examples=["acme/shop"])] = None,
    prefix: Annotated[
        str | None,
        Query(max_length=2000, description="Full names that begin with this.", examples=["topic://acme/"]),
    ] = None,
) -> dict[str, Any]:
    """Topics that are not deleted, by name."""
    with acting.app.store.transaction() as tx:
        return _LIST.page(tx, paging, namespace=namespace, prefix=prefix)


@router.get(f"{PREFIX}/namespaces", dependencies=[READ], response_model=Page[NamespaceNow])
def list_namespaces(
    acting: AtDesk,
    paging: Asked,
    prefix: Annotated[
        str | None, Query(max_length=1000, description="Names that begin with this.", examples=["acme/"])
    ] = None,
) -> dict[str, Any]:
    """Namespaces that have a topic which is not deleted, by name."""
    with acting.app.store.transaction() as tx:
        return _NAMESPACES.page(tx, paging, prefix=prefix)


@router.get(TOPIC_PATH, dependencies=[READ], response_model=TopicNow)
def show_topic(acting: AtDesk, topic: Topic) -> dict[str, Any]:
    """One topic."""
    with acting.app.store.transaction() as tx:
        [row] = inspection.rows(tx, _ONE, topic_id=inspected.find_topic(tx, topic).topic_id)
    return row


@router.put(TOPIC_PATH, dependencies=[ADMINISTER])
def create_topic(
    change: Changing, topic: Topic, said: Annotated[NewTopic | None, Body()] = None, wait_seconds: Wait = 0.0
) -> Intended:
    """Create a topic."""
    new = said or NewTopic()
    return change.intend(
        lambda store, request: topic_admin.create_topic(
            store,
            change.app.planes,
            topic,
            request,
            data_plane=new.data_plane or change.app.settings.serve_data_plane,
            segments=new.segments,
            policy=PolicyOverride.from_document(new.policy) if new.policy else None,
            properties=new.properties,
        ),
        reason=new.reason,
        wait_seconds=wait_seconds,
    )


@router.delete(TOPIC_PATH, dependencies=[ADMINISTER])
def delete_topic(
    change: Changing,
    topic: Topic,
    said: Annotated[WithReason | None, Body()] = None,
    wait_seconds: Wait = 0.0,
) -> Intended:
    """Delete a topic with every log behind it, unread messages included."""
    return change.intend(
        lambda store, request: topic_admin.delete_topic(store, topic, request),
        reason=(said or WithReason()).reason,
        wait_seconds=wait_seconds,
    )


@router.get(TOPIC_PATH + "/subscriptions", dependencies=[READ], response_model=Page[SubscriptionNow])
def list_subscriptions(acting: AtDesk, paging: Asked, topic: Topic) -> dict[str, Any]:
    """A topic's subscriptions by name, with their consumers."""
    with acting.app.store.transaction() as tx:
        return _SUBSCRIPTIONS.page(tx, paging, topic_id=inspected.find_topic(tx, topic).topic_id)


_SUBSCRIPTION = TOPIC_PATH + "/subscriptions/{subscription}"


@router.put(_SUBSCRIPTION, dependencies=[ADMINISTER])
def create_subscription(
    change: Changing,
    topic: Topic,
    subscription: Name,
    said: Annotated[NewSubscription | None, Body()] = None,
    wait_seconds: Wait = 0.0,
) -> Intended:
    """Create a subscription at the earliest position of every segment."""
    new = said or NewSubscription()
    return change.intend(
        lambda store, request: topic_admin.create_subscription(
            store, topic, subscription, request, kind=new.kind
        ),
        reason=new.reason,
        wait_seconds=wait_seconds,
    )


@router.delete(_SUBSCRIPTION, dependencies=[ADMINISTER])
def delete_subscription(
    change: Changing,
    topic: Topic,
    subscription: Name,
    said: Annotated[WithReason | None, Body()] = None,
    wait_seconds: Wait = 0.0,
) -> Intended:
    """Delete a subscription and its positions on every segment."""
    return change.intend(
        lambda store, request: topic_admin.delete_subscription(store, topic, subscription, request),
        reason=(said or WithReason()).reason,
        wait_seconds=wait_seconds,
    )


@router.post(_SUBSCRIPTION + "/sharing", dependencies=[ADMINISTER])
def set_sharing(
    change: Changing, topic: Topic, subscription: Name, said: Annotated[Sharing, Body()]
) -> Shared:
    """Set how a stream subscription is shared out over its consumers."""

    def shared(store: Store) -> Shared:
        with store.transaction() as tx:
            subscriptions.set_sharing(
                tx,
                topics.find_topic(tx, topic).topic_id,
                subscription,
                parents_block=said.parents_block,
                drain_consumers=said.drain_consumers,
            )
        return Shared(dry_run=change.dry_run, **said.model_dump())

    return change.once(Shared, shared)


@router.get(_SUBSCRIPTION + "/cursors", dependencies=[READ], response_model=Page[Cursor])
def list_cursors(acting: AtDesk, topic: Topic, subscription: Name, paging: Asked) -> dict[str, Any]:
    """What a seek of the subscription would move, by range, and who reads there."""
    range_start, segment_id = paging.after([int, int])
    found = topic_admin.what_a_seek_moves(
        acting.app.store,
        acting.app.planes,
        topic,
        subscription,
        after=None if segment_id is None else (range_start, segment_id),
        limit=paging.limit + 1,
    )
    return cut([asdict(one) for one in found], paging, ["range_start", "segment_id"])


@router.post(_SUBSCRIPTION + "/seek", dependencies=[ADMINISTER])
def seek(
    change: Changing,
    topic: Topic,
    subscription: Name,
    said: Annotated[Seek, Body()],
    wait_seconds: Wait = 0.0,
) -> Intended:
    """Have a subscription go on from somewhere else, on every segment, with all its consumers."""
    target, waited = parse_seek_target(said.to), said.release_seconds
    return change.intend(
        lambda store, request: topic_admin.seek_subscription(
            store,
            topic,
            subscription,
            target,
            request,
            release_seconds=change.app.settings.consumer_grace_seconds if waited is None else waited,
        ),
        reason=said.reason,
        wait_seconds=wait_seconds,
    )


@router.delete(_SUBSCRIPTION + "/seek", dependencies=[ADMINISTER])
def give_up_seek(
    change: Changing,
    topic: Topic,
    subscription: Name,
    said: Annotated[WithReason | None, Body()] = None,
    wait_seconds: Wait = 0.0,
) -> GivenUp:
    """Give up the seeks that wait for consumers or for logs out of reach; the subscription goes on as it was."""
    reason = (said or WithReason()).reason

    def given_up(store: Store) -> GivenUp:
        found = topic_admin.give_up_seek(store, topic, subscription, actor=change.actor, reason=reason)
        if not change.dry_run:
            found = [change.ended(one, wait_seconds) for one in found]
        operations = [OperationNow.model_validate(operation_document(one)) for one in found]
        return GivenUp(dry_run=change.dry_run, operations=operations)

    return change.once(GivenUp, given_up)
