"""Routes for a topic's layout and data plane, and for the topics of a namespace. Every worker answers.

The protocol as a client sees it: docs/reference/client-protocol.md.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from fastapi import Request as HttpRequest
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool

from controller.actions.rights import Right
from controller.bootstrap import ConsumerServices, addresses_of
from controller.questions.history import LIST_SEGMENTS
from controller.questions.question import read_answers
from controller.questions.spans import moment
from controller.services.watches.layout_feed import FedLayout
from controller.services.watches.topic_feed import NO_TOPICS, Names, TopicChanges, TopicFilter, snapshot_hash
from controller.store.topics import inspector_reads
from controller.store.topics.published_layout import PublishedLayout
from controller.web.paths import NAMESPACE_PATH, TOPIC_PATH, NamespaceName, Tenant
from controller.web.refusals import REFUSALS, json_answer
from controller.web.route_rights import LOOK_UP, DemandingRoute, Holder
from controller.web.shared_parameters import Topic, WithProperties, served_by
from controller.web.streams import EventStream, response, stream_of

router = APIRouter(route_class=DemandingRoute, responses=REFUSALS, tags=["clients: layouts"])
router_for_people = APIRouter(route_class=DemandingRoute, responses=REFUSALS, tags=["clients: layouts"])
"""The routes that servers for people have as well."""


class SegmentShown(BaseModel):
    """An ACTIVE segment and its log. `bucket_splits` are the first hashes of entry buckets 1, 2, …"""

    segment_id: int
    range_start: int
    range_end: int = Field(examples=[65535])
    bucket_splits: list[int] = Field(examples=[[16384, 32768, 49152]])
    created_epoch: int
    created_at_ms: int = Field(examples=[1795230000000])
    backing_topic: str = Field(examples=["segment://acme/shop/orders/0000-ffff-0"])


class LayoutShown(BaseModel):
    """The segments of one epoch. `leader` is the address of the worker that leads the topic; null if no worker does."""

    topic_id: int
    topic: str = Field(examples=["topic://acme/shop/orders"])
    data_plane: str = Field(examples=["embedded"])
    epoch: int = Field(examples=[7])
    next_segment_id: int
    leader: str | None = Field(examples=["http://10.0.0.7:8470"])
    segments: list[SegmentShown]


class DataPlaneShown(BaseModel):
    """The data plane of a topic and its addresses, without credentials. An address is null if this worker has none, or
    if it belongs to another plane.
    """

    topic: str = Field(examples=["topic://acme/shop/orders"])
    data_plane: str = Field(examples=["pulsar"])
    admin_url: str | None = Field(None, examples=["http://broker-1:8080"])
    service_url: str | None = Field(None, examples=["pulsar://broker-1:6650"])
    database_url: str | None = None


class TopicsShown(BaseModel):
    """Names of topics. Equal sets have equal `hash`es."""

    hash: str = Field(examples=["b6732174986d97d8"])
    topics: list[str] = Field(examples=[["topic://acme/shop/orders"]])


class LayoutQuery(BaseModel):
    """The query of a layout. Other parameters are refused, because a misspelt `at` would otherwise give the present layout."""

    model_config = ConfigDict(extra="forbid")

    at: str | None = Field(
        None,
        max_length=100,
        description="A past epoch or instant.",
        examples=["7", "2026-11-21T03:00:00Z"],
    )


@router_for_people.get(TOPIC_PATH + "/layout", dependencies=[LOOK_UP], response_model=LayoutShown)
async def layout(request: HttpRequest, topic: Topic, query: Annotated[LayoutQuery, Query()]) -> Response:
    """The ACTIVE segments at present, with the topic's leader, or the segments that were ACTIVE at the past epoch or
    instant `at`, without a leader. 404 for an unknown topic, and if the topic had no layout at that epoch or instant.
    """
    if query.at is not None:
        return json_answer(await run_in_threadpool(_layout_then, served_by(request), topic, moment(query.at)))
    return json_answer(layout_document(await run_in_threadpool(served_by(request).layouts.look, topic)))


def _layout_then(served: ConsumerServices, topic: str, at: int | datetime) -> dict[str, object]:
    """Return the document of `LayoutShown` for a past epoch (int) or time: the segments that were ACTIVE then, without a leader, because
    past leaders are not stored. Raises TopicNotFound, also for a deleted topic, and NotFound if the topic had no layout at that epoch or
    time.
    """
    with served.api.store.transaction() as tx:
        row = inspector_reads.find_topic(tx, topic)
        past = inspector_reads.layout_at(tx, row, at)
        ids = [segment.segment_id for segment in past.active]
        logs = read_answers(tx, LIST_SEGMENTS, columns="segment_id, backing_topic", segment_id=ids, **row.key)
    names = {log["segment_id"]: log["backing_topic"] for log in logs}
    return layout_document(
        FedLayout(PublishedLayout(row.topic_id, row.name, row.data_plane, past, names), None)
    )


@router.get(TOPIC_PATH + "/data-plane", dependencies=[LOOK_UP], response_model=DataPlaneShown)
async def data_plane(request: HttpRequest, topic: Topic) -> Response:
    """The data plane that the topic is on, and the addresses at which an application reaches its logs."""
    served = served_by(request)
    published = (await run_in_threadpool(served.layouts.look, topic)).published
    addresses = addresses_of(served.api.settings, published.data_plane)
    return json_answer({"topic": published.name, "data_plane": published.data_plane, **addresses})


@router.get(
    TOPIC_PATH + "/layout/watch",
    dependencies=[LOOK_UP],
    response_class=Response,
    responses=stream_of(
        "layout",
        {
            "topic_id": 1,
            "topic": "topic://acme/shop/orders",
            "data_plane": "embedded",
            "epoch": 0,
            "next_segment_id": 1,
            "leader": "http://10.0.0.7:8470",
            "segments": [
                {
                    "segment_id": 0,
                    "range_start": 0,
                    "range_end": 65_535,
                    "bucket_splits": [16_384, 32_768, 49_152],
                    "created_epoch": 0,
                    "created_at_ms": 1_795_230_000_000,
                    "backing_topic": "segment://acme/shop/orders/0000-ffff-0",
                }
            ],
        },
    ),
)
async def watch(request: HttpRequest, topic: Topic, holder: Holder) -> Response:
    """Events with the layout, sent when the layout or the topic's leader changes. The first event has the present
    layout. The stream ends when the topic is deleted or the token expires.
    """
    served = served_by(request)
    topic_id, _ = await run_in_threadpool(served.layouts.find, topic)
    stream: EventStream[FedLayout] = EventStream("layout", layout_document)
    return response(
        stream,
        served.leader.timing.heartbeat_seconds,
        holder,
        begin=partial(served.layouts.watch, topic_id, stream),
        end=partial(served.layouts.forget, topic_id, stream),
    )


Visible = tuple[ConsumerServices, TopicFilter, Callable[[str], bool]]
"""A request for the topics of a namespace, and the function that returns True for a topic that the token may look up."""


def _visible(
    request: HttpRequest,
    tenant: Tenant,
    namespace: NamespaceName,
    grant: Holder,
    wanted: WithProperties = (),
) -> Visible:
    """Return the request for the topics of the namespace that have the properties `wanted` (`key=value`), with the check of the grant.
    Raises InvalidInput for a property of another form, or for a key given twice. If the token can include no topic of the
    namespace, the request is for no topics, so that the names of the namespace are neither read nor checked.
    """
    where = f"{tenant}/{namespace}"
    selected = TopicFilter.of(where, wanted)
    return (
        served_by(request),
        selected if grant.may_look_into(where) else NO_TOPICS,
        lambda topic: grant.may(Right.LOOK_UP, topic=topic),
    )


Topics = Annotated[Visible, Depends(_visible)]


@router.get(NAMESPACE_PATH + "/topics", dependencies=[LOOK_UP], response_model=TopicsShown)
async def topics(visible: Topics) -> Response:
    """The live topics of the namespace that have all the properties (`property=key=value`; without properties, all
    live topics) and that the token includes, with the hash of this set of names.
    """
    served, wanted, is_allowed = visible
    names = await run_in_threadpool(served.topics.look, wanted)
    allowed = [name for name in names if is_allowed(name)]
    return json_answer({"hash": snapshot_hash(allowed), "topics": allowed})


@router.get(
    NAMESPACE_PATH + "/topics/watch",
    dependencies=[LOOK_UP],
    response_class=Response,
    responses=stream_of("topics", {"hash": "b6732174986d97d8", "topics": ["topic://acme/shop/orders"]}),
)
async def watch_topics(
    visible: Topics,
    holder: Holder,
    known_hash: Annotated[str, Query(alias="hash", max_length=64, examples=["b6732174986d97d8"])] = "",
) -> Response:
    """Events: first the topics of the namespace that the token may look up, then what was removed and added; changes within 50 ms are one
    event. `hash` is the hash of the set that the client knows; the first event is left out if the set is equal.
    """
    served, wanted, is_allowed = visible
    changes = TopicChanges(is_allowed, known_hash)
    stream: EventStream[Names] = EventStream("topics", changes.document)
    return response(
        stream,
        served.leader.timing.heartbeat_seconds,
        holder,
        begin=partial(served.topics.watch, wanted, stream),
        end=partial(served.topics.forget, wanted, stream),
    )


def layout_document(fed: FedLayout) -> dict[str, object]:
    """Return the document of `LayoutShown`. Sealed segments are left out."""
    published = fed.published
    return {
        "topic_id": published.topic_id,
        "topic": published.name,
        "data_plane": published.data_plane,
        "epoch": published.layout.epoch,
        "next_segment_id": published.layout.next_segment_id,
        "leader": fed.leader,
        "segments": [
            {
                "segment_id": segment.segment_id,
                "range_start": segment.hash_range.start,
                "range_end": segment.hash_range.end,
                "bucket_splits": segment.bucket_splits,
                "created_epoch": segment.created_epoch,
                "created_at_ms": segment.created_at_ms,
                "backing_topic": published.backing_topics[segment.segment_id],
            }
            for segment in published.layout.active
        ],
    }
