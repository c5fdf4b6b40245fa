"""Topics and their subscriptions: list, show, create, delete, and have a subscription go on from somewhere else."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from controller.actions.subscriptions import CursorDocument
from controller.entrypoints.web.acting import AtDesk
from controller.entrypoints.web.api.paging import Asked, Listing, Page, cut
from controller.entrypoints.web.asked import Topic
from controller.entrypoints.web.demands import READ, DemandingRoute
from controller.entrypoints.web.paths import PREFIX, TOPIC_PATH, Name
from controller.entrypoints.web.refusals import REFUSALS
from controller.services import topic_admin
from controller.store.postgres import inspection
from controller.store.topics import inspected

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


@router.get(TOPIC_PATH + "/subscriptions", dependencies=[READ], response_model=Page[SubscriptionNow])
def list_subscriptions(acting: AtDesk, paging: Asked, topic: Topic) -> dict[str, Any]:
    """A topic's subscriptions by name, with their consumers."""
    with acting.app.store.transaction() as tx:
        return _SUBSCRIPTIONS.page(tx, paging, topic_id=inspected.find_topic(tx, topic).topic_id)


_SUBSCRIPTION = TOPIC_PATH + "/subscriptions/{subscription}"


@router.get(_SUBSCRIPTION + "/cursors", dependencies=[READ], response_model=Page[CursorDocument])
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
