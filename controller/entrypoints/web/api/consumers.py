"""Who consumes a topic: what each subscription may read, who has it, and why nobody does."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from controller.entrypoints.web.acting import AtDesk
from controller.entrypoints.web.api.paging import Asked, Listing, Page
from controller.entrypoints.web.asked import Topic
from controller.entrypoints.web.demands import READ, DemandingRoute
from controller.entrypoints.web.paths import TOPIC_PATH
from controller.entrypoints.web.refusals import REFUSALS
from controller.store.topics import inspected

router = APIRouter(route_class=DemandingRoute, responses=REFUSALS, tags=["consumers"])
_ASSIGNMENTS = Listing(
    """
    SELECT topic, topic_id, subscription, kind, segment_id, hash_range, state, is_drained, barrier, waits_for,
           consumers AS consumer_names
      FROM inspect.assignments
     WHERE topic_id = :topic_id
       AND (CAST(:after_subscription AS text) IS NULL
            OR (subscription, hash_range, segment_id) > (:after_subscription, :after_hash_range, :after_segment_id))
     ORDER BY subscription, hash_range, segment_id LIMIT :limit
    """,
    {"subscription": str, "hash_range": str, "segment_id": int},
)
_BUCKETS = Listing(
    """
    SELECT subscription, segment_id, hash_range, state, bucket, owner, successor, generation, reason, since, waits_for, held_by
      FROM inspect.buckets
     WHERE topic_id = :topic_id AND (CAST(:subscription AS text) IS NULL OR subscription = :subscription)
       AND (CAST(:after_subscription AS text) IS NULL
            OR (subscription, hash_range, segment_id, bucket)
             > (:after_subscription, :after_hash_range, :after_segment_id, :after_bucket))
     ORDER BY subscription, hash_range, segment_id, bucket LIMIT :limit
    """,
    {"subscription": str, "hash_range": str, "segment_id": int, "bucket": str},
)


class Assignment(BaseModel):
    """A segment that a subscription has to read, and whether it waits for ancestors; as `inspect.assignments`."""

    topic: str = Field(examples=["topic://acme/shop/orders"])
    topic_id: int
    subscription: str = Field(examples=["billing"])
    kind: str = Field(examples=["STREAM"])
    segment_id: int
    hash_range: str = Field(examples=["0000-7fff"])
    state: str = Field(examples=["ACTIVE"])
    is_drained: bool
    barrier: str = Field(examples=["readable"])
    waits_for: list[int] = Field(examples=[[0]])
    consumer_names: list[str] = Field(examples=[["a"]])


class Bucket(BaseModel):
    """An entry bucket that a subscription has to read: who has it, or why nobody reads it; as `inspect.buckets`."""

    subscription: str = Field(examples=["billing"])
    segment_id: int
    hash_range: str = Field(examples=["0000-ffff"])
    state: str = Field(examples=["ACTIVE"])
    bucket: str = Field(examples=["0000-3fff"])
    owner: str | None = Field(examples=["a"])
    successor: str | None
    generation: int | None
    reason: str = Field(examples=["no consumer is registered"])
    since: datetime | None = Field(examples=["2026-11-21T03:00:00Z"])
    waits_for: list[int]
    held_by: list[str]


@router.get(TOPIC_PATH + "/assignments", dependencies=[READ], response_model=Page[Assignment])
def list_assignments(acting: AtDesk, paging: Asked, topic: Topic) -> dict[str, Any]:
    """What each subscription may read, and what it may not yet."""
    with acting.app.store.transaction() as tx:
        return _ASSIGNMENTS.page(tx, paging, topic_id=inspected.find_topic(tx, topic).topic_id)


@router.get(TOPIC_PATH + "/buckets", dependencies=[READ], response_model=Page[Bucket])
def list_buckets(
    acting: AtDesk,
    paging: Asked,
    topic: Topic,
    subscription: Annotated[str | None, Query(max_length=500, examples=["billing"])] = None,
) -> dict[str, Any]:
    """Of each entry bucket who reads it, or why nobody does, of one subscription or of all."""
    with acting.app.store.transaction() as tx:
        topic_id = inspected.find_topic(tx, topic).topic_id
        return _BUCKETS.page(tx, paging, topic_id=topic_id, subscription=subscription)
