"""What people look at again and again, each in one answer: the fleet, a topic with all that concerns it, and its hot keys."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from controller.entrypoints import pictures
from controller.entrypoints.reading import snapshot
from controller.entrypoints.web.acting import AtDesk
from controller.entrypoints.web.api.paging import Asked, Listing, Page
from controller.entrypoints.web.asked import Topic
from controller.entrypoints.web.demands import READ, DemandingRoute
from controller.entrypoints.web.paths import PREFIX, TOPIC_PATH
from controller.entrypoints.web.refusals import REFUSALS
from controller.store.topics import inspected

router = APIRouter(route_class=DemandingRoute, responses=REFUSALS, tags=["pictures"])
_HOT_KEYS = Listing(
    f"""
    SELECT * FROM ({pictures.HOT_KEYS}) AS hot
     WHERE CAST(:after_segment_id AS bigint) IS NULL OR segment_id > :after_segment_id ORDER BY segment_id LIMIT :limit
    """,
    {"segment_id": int},
)


class Fleet(BaseModel):
    """`health` as `inspect.health`, topics with columns of `inspect.fleet`: what needs somebody first, then what is hottest."""

    at: datetime = Field(examples=["2026-11-21T03:00:00Z"])
    health: dict[str, Any] = Field(examples=[{"topics": 12, "active_segments": 40, "workers": 2}])
    topics: list[dict[str, Any]] = Field(examples=[[{"topic": "topic://acme/shop/orders", "urgency": 0}]])


class Overview(BaseModel):
    """A topic as `inspect.fleet`; its segments with their load by range, the newest operations, refusals and subscriptions."""

    at: datetime = Field(examples=["2026-11-21T03:00:00Z"])
    topic: dict[str, Any] = Field(examples=[{"topic": "topic://acme/shop/orders", "epoch": 7}])
    segments: list[dict[str, Any]] = Field(examples=[[{"segment_id": 0, "hash_range": "0000-ffff"}]])
    operations: list[dict[str, Any]]
    refusals: list[dict[str, Any]]
    subscriptions: list[dict[str, Any]]


class HotKeys(BaseModel):
    """Where in an ACTIVE segment its load lies, in units of a segment's capacity; what no split can take away is unsplittable."""

    segment_id: int
    hash_range: str = Field(examples=["0000-7fff"])
    load: float | None = Field(examples=[1.4])
    hottest: str | None = Field(examples=["1a2b-1a2b"])
    share: float | None = Field(description="Of the segment's load, on the hottest part.", examples=[0.6])
    load_on_hottest: float | None
    messages: int | None
    age_seconds: float | None
    is_fresh: bool | None
    unsplittable_load: float | None


@router.get(f"{PREFIX}/fleet", dependencies=[READ], response_model=Fleet)
def show_fleet(
    acting: AtDesk,
    find: Annotated[
        str, Query(max_length=2000, description="Only topics with this in their names.", examples=["orders"])
    ] = "",
    limit: Annotated[int, Query(ge=1, le=1000, description="Topics at most.", examples=[20])] = 50,
) -> dict[str, Any]:
    """The fleet at a glance."""
    with snapshot(acting.app.store) as tx:
        return pictures.of_fleet(tx, find, limit)


@router.get(TOPIC_PATH + "/overview", dependencies=[READ], response_model=Overview)
def show_overview(acting: AtDesk, topic: Topic) -> dict[str, Any]:
    """A topic at a glance."""
    with snapshot(acting.app.store) as tx:
        return pictures.of_topic(tx, topic)


@router.get(TOPIC_PATH + "/hot-keys", dependencies=[READ], response_model=Page[HotKeys])
def list_hot_keys(acting: AtDesk, paging: Asked, topic: Topic) -> dict[str, Any]:
    """Which part of each ACTIVE segment has the most load, by segment."""
    with acting.app.store.transaction() as tx:
        return _HOT_KEYS.page(tx, paging, topic=inspected.find_topic(tx, topic).name)
