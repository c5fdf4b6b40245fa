"""What people look at again and again, each in one answer: the fleet, a topic with all that concerns it, and its hot keys."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from controller.entrypoints import pictures
from controller.entrypoints.web.acting import AtDesk
from controller.entrypoints.web.asked import Topic
from controller.entrypoints.web.demands import READ, DemandingRoute
from controller.entrypoints.web.paths import PREFIX, TOPIC_PATH
from controller.entrypoints.web.refusals import REFUSALS
from controller.store.postgres.snapshots import snapshot

router = APIRouter(route_class=DemandingRoute, responses=REFUSALS, tags=["pictures"])


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
