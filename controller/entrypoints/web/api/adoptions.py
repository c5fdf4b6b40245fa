"""Topics that were there before Cleave: adopted from plain ones, attached where a broker keeps the layout, and given back to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Body
from pydantic import BaseModel, ConfigDict, Field

from controller.entrypoints import adoption_desk
from controller.entrypoints.adoption_desk import Adoption
from controller.entrypoints.web.api.changes import (
    Changing,
    Intended,
    MadeSegment,
    PlannedSegment,
    Wait,
    WithReason,
)
from controller.entrypoints.web.asked import Topic
from controller.entrypoints.web.demands import ADMINISTER, DemandingRoute
from controller.entrypoints.web.paths import TOPIC_PATH
from controller.entrypoints.web.refusals import REFUSALS
from controller.services import topic_admin
from controller.store.journal.operations import Request
from controller.store.journal.request_keys import Intent
from controller.store.postgres.engine import Store

router = APIRouter(route_class=DemandingRoute, responses=REFUSALS, tags=["topics"])


class Adopt(WithReason):
    """The plain or partitioned topic that is to become the scalable one that the path names."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "old": "persistent://acme/shop/orders",
                    "segments": 4,
                    "cut_off": False,
                    "reason": "it has become too much for one topic",
                }
            ]
        }
    )

    old: Annotated[str, Field(min_length=1, max_length=2000, examples=["persistent://acme/shop/orders"])]
    segments: Annotated[int, Field(ge=1, le=65_536)] | None = Field(
        None, description="To begin with; one a partition where null."
    )
    data_plane: str = "pulsar"
    cut_off: bool = Field(False, description="Although producers or consumers are connected.")


class WouldAdopt(BaseModel):
    """What adopting would do."""

    old: str = Field(examples=["persistent://acme/shop/orders"])
    topic: str = Field(examples=["topic://acme/shop/orders"])
    closes: list[str] = Field(
        description="Logs that end, and are read first.", examples=[["persistent://acme/shop/orders"]]
    )
    segments: list[PlannedSegment] = Field(description="What follows them.")
    subscriptions: dict[str, str] = Field(description="How each is read.", examples=[{"billing": "STREAM"}])
    producers: list[str] = Field(
        description="Connected now, as `consumers`: stop them first, or cut them off."
    )
    consumers: list[str] = Field(examples=[["a"]])


class Adopted(Intended):
    """The operation that adopts."""

    found: WouldAdopt | None = Field(None, description="Null but for a rehearsal.")


class Attach(WithReason):
    """To which data plane."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"data_plane": "pulsar_scalable", "reason": "Cleave decides from now on"}]
        }
    )

    data_plane: str = "pulsar_scalable"


class SegmentOnBroker(MadeSegment):
    """A segment as the broker keeps it."""

    parents: list[int] = Field(examples=[[0]])


class Attached(Intended):
    """The operation that attaches."""

    on_broker: list[SegmentOnBroker] | None = Field(
        None, description="The topic's active segments there; null but for a rehearsal."
    )


@router.post(TOPIC_PATH + "/adopt", dependencies=[ADMINISTER])
def adopt_topic(
    change: Changing, topic: Topic, said: Annotated[Adopt, Body()], wait_seconds: Wait = 0.0
) -> Adopted:
    """Make a scalable topic of a plain or partitioned one; what is in it is read first."""
    asked = Adoption(said.old, topic, said.segments, said.data_plane, said.cut_off)
    found: dict[str, Any] = {}

    def adopted(store: Store, request: Request) -> Intent:
        intent, planned = adoption_desk.adopt(change.app, store, asked, request, dry_run=change.dry_run)
        found["found"] = asdict(planned)
        return intent

    return change.intend_as(
        Adopted, adopted, reason=said.reason, wait_seconds=wait_seconds, told=lambda: found
    )


@router.post(TOPIC_PATH + "/attach", dependencies=[ADMINISTER])
def attach_topic(
    change: Changing, topic: Topic, said: Annotated[Attach | None, Body()] = None, wait_seconds: Wait = 0.0
) -> Attached:
    """Decide for a scalable topic of Pulsar 5: mirror its layout and turn the broker's own auto-scaler off for it."""
    asked = said or Attach()

    def on_broker() -> dict[str, Sequence[dict[str, Any]]]:
        return {"on_broker": adoption_desk.layout_on_broker(change.app, topic, asked.data_plane)}

    return change.intend_as(
        Attached,
        lambda store, request: topic_admin.attach_topic(
            store, change.app.planes, topic, request, data_plane=asked.data_plane
        ),
        reason=asked.reason,
        wait_seconds=wait_seconds,
        told=on_broker,
    )


@router.post(TOPIC_PATH + "/detach", dependencies=[ADMINISTER])
def detach_topic(
    change: Changing,
    topic: Topic,
    said: Annotated[WithReason | None, Body()] = None,
    wait_seconds: Wait = 0.0,
) -> Intended:
    """Give an attached topic back to its broker's own auto-scaler, set as it was before."""
    return change.intend(
        lambda store, request: topic_admin.detach_topic(store, topic, request),
        reason=(said or WithReason()).reason,
        wait_seconds=wait_seconds,
    )
