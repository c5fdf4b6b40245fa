"""A topic's past and present: its layouts epoch by epoch, where a segment came from and what came of it, its load."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from controller.entrypoints.web.acting import AtDesk
from controller.entrypoints.web.asked import Topic
from controller.entrypoints.web.demands import READ, DemandingRoute
from controller.entrypoints.web.paths import TOPIC_PATH
from controller.entrypoints.web.refusals import REFUSALS
from controller.questions.spans import moment
from controller.store.topics import inspected

router = APIRouter(route_class=DemandingRoute, responses=REFUSALS, tags=["history"])


class _Recorded(BaseModel):
    """Field by field as PIP-468 writes it."""

    model_config = ConfigDict(alias_generator=to_camel)


class Ring(BaseModel):
    """Hashes, both ends included."""

    start: int = Field(examples=[0])
    end: int = Field(examples=[32767])


class SegmentRecord(_Recorded):
    """A segment; epochs and instants that there are not, are -1."""

    segment_id: int
    hash_range: Ring
    state: str = Field(examples=["ACTIVE"])
    parent_ids: list[int] = Field(examples=[[0]])
    child_ids: list[int]
    created_at_epoch: int
    sealed_at_epoch: int = Field(examples=[-1])
    created_at_ms: int = Field(examples=[1795230000000])
    sealed_at_ms: int
    legacy_topic_name: str | None
    entry_bucket_splits: list[int] = Field(examples=[[8192, 16384, 24576]])
    merge_depth: int


class LayoutRecord(_Recorded):
    """A topic's layout, sealed segments included; without the topic's properties."""

    properties: dict[str, str]
    epoch: int = Field(examples=[7])
    next_segment_id: int = Field(examples=[3])
    segments: dict[str, SegmentRecord]


@router.get(TOPIC_PATH + "/layout/metadata", dependencies=[READ], response_model=LayoutRecord)
def show_layout_metadata(
    acting: AtDesk,
    topic: Topic,
    at: Annotated[
        str | None,
        Query(max_length=100, description="A past epoch or instant.", examples=["7", "2026-11-21T03:00:00Z"]),
    ] = None,
) -> dict[str, Any]:
    """The whole layout, now or then: ACTIVE segments, and sealed ones until they are pruned."""
    with acting.app.store.transaction() as tx:
        row = inspected.find_topic(tx, topic)
        found = inspected.load_layout(tx, row) if at is None else inspected.layout_at(tx, row, moment(at))
    return found.to_metadata()
