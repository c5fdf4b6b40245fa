"""Routes for the segments that consumers without a session read: all segments of a topic, and those of a queue. Every worker answers.

The protocol as a client sees it: docs/reference/client-protocol.md.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, FailFast, Field
from starlette.concurrency import run_in_threadpool

from controller.services import segment_lists
from controller.store.topics.published_layout import PublishedLayout
from controller.web.paths import PRINTABLE, TOPIC_PATH, Name
from controller.web.refusals import REFUSALS, json_answer
from controller.web.route_rights import CONSUME, LOOK_UP, DemandingRoute
from controller.web.shared_parameters import Topic, served_by

router = APIRouter(route_class=DemandingRoute, responses=REFUSALS, tags=["clients: layouts"])


class ListedSegment(BaseModel):
    """A segment of the layout, ACTIVE or SEALED."""

    segment_id: int
    range_start: int
    range_end: int = Field(examples=[32767])
    state: str = Field(examples=["ACTIVE"])
    parent_ids: list[int] = Field(examples=[[0]])
    created_epoch: int
    backing_topic: str = Field(examples=["segment://acme/shop/orders/0000-7fff-1"])


class SegmentsShown(BaseModel):
    """Segments to read. `as_of` is set for a queue only."""

    topic_id: int
    topic: str = Field(examples=["topic://acme/shop/orders"])
    data_plane: str
    epoch: int = Field(examples=[7])
    segments: list[ListedSegment]
    as_of: str | None = Field(None, examples=["0.1"])


class DrainedQueue(BaseModel):
    """Sealed segments that the consumers of a queue have settled; `as_of` is the value that came with the list of segments."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"as_of": "0.1", "segment_ids": [0]}]})

    as_of: Annotated[str, Field(min_length=1, max_length=100, pattern=PRINTABLE)]
    segment_ids: Annotated[
        list[Annotated[int, Field(ge=0, lt=2**63)]], Field(min_length=1, max_length=10_000), FailFast()
    ]


@router.get(TOPIC_PATH + "/segments", dependencies=[LOOK_UP], response_model=SegmentsShown)
async def segments(request: HttpRequest, topic: Topic) -> Response:
    """All segments that are not pruned, ACTIVE and SEALED, for consumers that store positions themselves."""
    listed = await run_in_threadpool(segment_lists.whole, served_by(request).app.store, topic)
    return json_answer(segments_document(listed))


@router.get(
    TOPIC_PATH + "/subscriptions/{subscription}/queue", dependencies=[CONSUME], response_model=SegmentsShown
)
async def queue(request: HttpRequest, topic: Topic, subscription: Name) -> Response:
    """The segments in which a queue has, or can get, unread messages."""
    store = served_by(request).app.store
    listed, as_of = await run_in_threadpool(segment_lists.of_queue, store, topic, subscription)
    return json_answer({**segments_document(listed), "as_of": as_of})


@router.post(
    TOPIC_PATH + "/subscriptions/{subscription}/queue/drained", status_code=204, dependencies=[CONSUME]
)
async def queue_drained(request: HttpRequest, topic: Topic, subscription: Name, body: DrainedQueue) -> None:
    """Record sealed segments that the consumers of a queue have settled to their end."""
    store = served_by(request).app.store
    await run_in_threadpool(segment_lists.drained, store, topic, subscription, body.as_of, body.segment_ids)


def segments_document(listed: PublishedLayout) -> dict[str, object]:
    """Return the segments as consumers without a session receive them, sorted by id."""
    layout = listed.layout
    return {
        "topic_id": listed.topic_id,
        "topic": listed.name,
        "data_plane": listed.data_plane,
        "epoch": layout.epoch,
        "segments": [
            {
                "segment_id": segment.segment_id,
                "range_start": segment.hash_range.start,
                "range_end": segment.hash_range.end,
                "state": segment.state,
                "parent_ids": segment.parent_ids,
                "created_epoch": segment.created_epoch,
                "backing_topic": listed.backing_topics[segment.segment_id],
            }
            for _, segment in sorted(layout.segments.items())
        ],
    }
