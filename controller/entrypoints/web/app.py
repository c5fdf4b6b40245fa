"""The routes of clients: a topic's layout, and a consumer's session. Each answers in JSON, an error with its reason.

Layouts are served by every worker. Sessions are the leader's: another worker sends the client there (307), or says that nobody
leads the topic just now (503). The protocol as a client sees it: docs/reference/client-protocol.md.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar, cast

import msgspec
from fastapi import APIRouter, Depends, FastAPI, Header, Path, Query
from fastapi import Request as HttpRequest
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse, Response
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from controller.bootstrap import ConsumerServices
from controller.domain.errors import (
    AccessDenied,
    AccessForbidden,
    CleaveError,
    Conflict,
    FencedOut,
    InvalidInput,
    LostRace,
    NotFound,
    Retryable,
    SessionExpired,
    StoreUnavailable,
    Unsupported,
)
from controller.domain.shown import shown
from controller.entrypoints.web import access
from controller.entrypoints.web.streams import EventStream, response
from controller.services.consumer_sessions.leader import SessionLeader
from controller.services.consumer_sessions.requests import (
    Attach,
    Detach,
    Drained,
    Goodbye,
    Pulse,
    PushedAssignment,
    ReadSegment,
    Register,
    Release,
    ReleasedBucket,
    Request,
)
from controller.services.segment_lists import SegmentList
from controller.services.watches.layout_feed import FedLayout
from controller.services.watches.topic_feed import Names, TopicChanges, TopicFilter, snapshot_hash
from controller.store.topics.bucket_owners import SubscriptionKey
from controller.store.topics.subscriptions import SubscriptionKind

ANSWER_SECONDS = 10.0
"""A leader that has not answered by then is asked again."""
_STATUS: tuple[tuple[type[CleaveError], int], ...] = (
    (AccessDenied, 401),
    (AccessForbidden, 403),
    (NotFound, 404),
    (SessionExpired, 409),
    (LostRace, 409),
    (Conflict, 409),
    (FencedOut, 410),
    (InvalidInput, 412),
    (Unsupported, 422),
    (Retryable, 503),
)
Asked = TypeVar("Asked", bound=Request)
PRINTABLE = r"^[\x21-\x7e]+$"
LARGEST_BODY_BYTES = 4 * 1024 * 1024
"""Of a request; a consumer that releases 65,536 buckets says less."""


class Life(BaseModel):
    """Which life of the consumer asks."""

    incarnation: Annotated[str, Field(min_length=1, max_length=200, pattern=PRINTABLE)]


class Registration(Life):
    """A consumer that begins, and the kind that its subscription must have."""

    reads: Literal[SubscriptionKind.STREAM, SubscriptionKind.CHECKPOINT] = SubscriptionKind.STREAM


class LetGo(BaseModel):
    """A bucket that was let go of, as of the generation at which it was got."""

    segment_id: Annotated[int, Field(ge=0, lt=2**63)]
    bucket_start: Annotated[int, Field(ge=0, le=65_535)]
    generation: Annotated[int, Field(ge=0, lt=2**63)]


class Released(Life):
    """Buckets that are settled, their readers closed."""

    buckets: Annotated[list[LetGo], Field(max_length=65_536)]


class ReadToItsEnd(BaseModel):
    """A sealed segment, as of the generation at which the consumer got what it read of it."""

    segment_id: Annotated[int, Field(ge=0, lt=2**63)]
    generation: Annotated[int, Field(ge=0, lt=2**63)]


class DrainedSegments(Life):
    """Sealed segments that are read to their end."""

    segments: Annotated[list[ReadToItsEnd], Field(min_length=1, max_length=10_000)]


class DrainedQueue(BaseModel):
    """Sealed segments that a queue's consumers have settled, as of what came with their list."""

    as_of: Annotated[str, Field(min_length=1, max_length=100, pattern=PRINTABLE)]
    segment_ids: Annotated[
        list[Annotated[int, Field(ge=0, lt=2**63)]], Field(min_length=1, max_length=10_000)
    ]


def create_app(served: ConsumerServices, secret: str, *, most_at_once: int) -> FastAPI:
    """The app that a worker serves, with so many requests and streams under way at once."""
    app = FastAPI(title="Cleave", docs_url=None, redoc_url=None)
    app.state.served, app.state.secret = served, secret
    app.add_exception_handler(CleaveError, _refusal)
    app.add_exception_handler(RequestValidationError, _wrong_form)
    app.add_exception_handler(HTTPException, _no_such_call)
    app.add_exception_handler(_AskLeader, _send_there)
    app.include_router(router)
    app.add_middleware(SmallRequests)
    app.add_middleware(FewAtOnce, most=most_at_once)
    return app


class FewAtOnce:
    """Refuses what would be one too many, before anything of it is read. A stream counts until it ends."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app, self._most = app, most
        self._under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if self._under_way >= self._most:
            reason = (
                f"this worker serves {self._most} requests and streams already; ask another one, or raise "
                "CLEAVE_SERVE_CONNECTIONS"
            )
            refusal = _json({"reason": reason, "kind": "StoreUnavailable"}, 503, {"Retry-After": "1"})
            await refusal(scope, receive, send)
            return
        self._under_way += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._under_way -= 1


class SmallRequests:
    """Refuses a body that is too large, or does not say how large it is, before anything of it is read."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = dict(scope["headers"])
            length = headers.get(b"content-length", b"0")
            if b"transfer-encoding" in headers or not length.isdigit() or int(length) > LARGEST_BODY_BYTES:
                reason = f"a body of {LARGEST_BODY_BYTES} bytes at most, with its length in Content-Length"
                await _json({"reason": reason, "kind": "InvalidInput"}, 413)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _served(request: HttpRequest) -> ConsumerServices:
    found: ConsumerServices = request.app.state.served
    return found


Name = Annotated[str, Path(pattern=r"^[^\s/\x00]+$", max_length=500)]


def _topic(
    request: HttpRequest,
    tenant: Name,
    namespace: Name,
    topic: Name,
    authorization: Annotated[str | None, Header()] = None,
) -> str:
    """The topic that is asked for, if the token is for it."""
    name = f"topic://{tenant}/{namespace}/{topic}"
    access.read(request.app.state.secret, authorization).demand(name)
    return name


@dataclass(frozen=True, slots=True)
class Asking:
    """Which consumer of which subscription asks, at its leader."""

    served: ConsumerServices
    key: SubscriptionKey
    consumer: str

    async def ask(self, kind: type[Asked], **more: Any) -> None:
        """Put it into the leader's mailbox and wait for the answer."""
        await _answered(self.served.leader, kind(key=self.key, consumer=self.consumer, **more))


class _AskLeader(Exception):
    """Another worker leads the topic, at this address."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.address = address


async def _asking(request: HttpRequest, topic: Topic, subscription: Name, consumer: Name) -> Asking:
    """At the leader; a client that asks another worker is sent there."""
    served = _served(request)
    topic_id, leader = await run_in_threadpool(served.layouts.find, topic)
    if not served.leader.leads(topic_id):
        if leader is None:
            raise StoreUnavailable(f"nobody leads {topic} just now; ask again in a moment")
        raise _AskLeader(leader)
    return Asking(served, SubscriptionKey(topic_id, subscription), consumer)


Topic = Annotated[str, Depends(_topic)]
AtLeader = Annotated[Asking, Depends(_asking)]
_PREFIX = "/api/v1"
_NAMES = "names of topics, subscriptions and consumers have no slash, no space and 500 characters at most"
_TOPIC = _PREFIX + "/topics/{tenant}/{namespace}/{topic}"
_NAMESPACE = _PREFIX + "/namespaces/{tenant}/{namespace}"
CONSUMER_PATH = _TOPIC + "/subscriptions/{subscription}/consumers/{consumer}"
router = APIRouter()


@router.get(_TOPIC + "/layout")
async def layout(request: HttpRequest, topic: Topic) -> Response:
    """The ACTIVE segments as they are now."""
    return _json(layout_document(await run_in_threadpool(_served(request).layouts.look, topic)))


@router.get(_TOPIC + "/layout/watch")
async def watch(
    request: HttpRequest, topic: Topic, epoch: Annotated[int, Query(ge=-1, lt=2**63)] = -1
) -> Response:
    """The layout whenever it changes, as events. `epoch` is the last one known: it is not sent again."""
    served = _served(request)
    topic_id, _ = await run_in_threadpool(served.layouts.find, topic)
    stream: EventStream[FedLayout] = EventStream(
        "layout", lambda found: None if found.published.layout.epoch == epoch else layout_document(found)
    )

    async def events() -> AsyncIterator[bytes]:
        served.layouts.watch(topic_id, stream)
        try:
            async for event in stream.events(served.leader.timing.heartbeat_seconds):
                yield event
        finally:
            served.layouts.forget(topic_id, stream)

    return response(events())


@dataclass(frozen=True, slots=True)
class Visible:
    """The topics that are asked for, and which of them the token may know of."""

    served: ConsumerServices
    wanted: TopicFilter
    is_allowed: Callable[[str], bool]


def _visible(
    request: HttpRequest,
    tenant: Name,
    namespace: Name,
    wanted: Annotated[list[str], Query(alias="property", max_length=20)] = [],  # noqa: B006 - FastAPI copies it
    authorization: Annotated[str | None, Header()] = None,
) -> Visible:
    served = _served(request)
    grant = access.read(request.app.state.secret, authorization)
    return Visible(served, TopicFilter.of(f"{tenant}/{namespace}", wanted), grant.allows)


Topics = Annotated[Visible, Depends(_visible)]


@router.get(_NAMESPACE + "/topics")
async def topics(visible: Topics) -> Response:
    """The live topics of the namespace that have all these properties (`property=key=value`), as far as the token is for them."""
    names = await run_in_threadpool(visible.served.topics.look, visible.wanted)
    allowed = [name for name in names if visible.is_allowed(name)]
    return _json({"hash": snapshot_hash(allowed), "topics": allowed})


@router.get(_NAMESPACE + "/topics/watch")
async def watch_topics(
    visible: Topics, known_hash: Annotated[str, Query(alias="hash", max_length=64)] = ""
) -> Response:
    """The same, then what changes, as events. `hash` is that of the set which is known: it is not sent again."""
    feed, wanted = visible.served.topics, visible.wanted
    changes = TopicChanges(visible.is_allowed, known_hash)
    stream: EventStream[Names] = EventStream("topics", changes.document)

    async def events() -> AsyncIterator[bytes]:
        feed.watch(wanted, stream)
        try:
            async for event in stream.events(visible.served.leader.timing.heartbeat_seconds):
                yield event
        finally:
            feed.forget(wanted, stream)

    return response(events())


@router.get(_TOPIC + "/segments")
async def segments(request: HttpRequest, topic: Topic) -> Response:
    """Every segment that is not pruned, sealed ones included: for consumers that keep positions themselves."""
    return _json(segments_document(await run_in_threadpool(_served(request).lists.whole, topic)))


@router.get(_TOPIC + "/subscriptions/{subscription}/queue")
async def queue(request: HttpRequest, topic: Topic, subscription: Name) -> Response:
    """The segments in which a queue has, or will have, something to read."""
    found = await run_in_threadpool(_served(request).lists.of_queue, topic, subscription)
    return _json(segments_document(found))


@router.post(_TOPIC + "/subscriptions/{subscription}/queue/drained", status_code=204)
async def queue_drained(request: HttpRequest, topic: Topic, subscription: Name, said: DrainedQueue) -> None:
    """Sealed segments that a queue's consumers have settled to their end."""
    lists = _served(request).lists
    await run_in_threadpool(lists.drained, topic, subscription, said.as_of, said.segment_ids)


@router.get(_TOPIC + "/subscriptions/{subscription}/why")
async def why(request: HttpRequest, topic: Topic, subscription: Name) -> Response:
    """Of each bucket that the subscription has to read who has it, or why nobody reads it."""
    return _json(await run_in_threadpool(_served(request).layouts.why, topic, subscription))


@router.get(_TOPIC + "/subscriptions/{subscription}/lag")
async def lag(request: HttpRequest, topic: Topic, subscription: Name) -> Response:
    """Unacknowledged messages of each bucket that the subscription has to read, whether anybody reads it or not."""
    return _json(await run_in_threadpool(_served(request).lag, topic, subscription))


@router.post(CONSUMER_PATH)
async def register(asking: AtLeader, said: Registration) -> Response:
    """Begin a session, or go on with it; the answer says how long silence may last. Then hold the assignment stream open."""
    await asking.ask(Register, incarnation=said.incarnation, reads=said.reads)
    timing = asking.served.leader.timing
    return _json(
        {
            "topic_id": asking.key.topic_id,
            "heartbeat_seconds": timing.heartbeat_seconds,
            "silent_seconds": timing.silent_seconds,
            "grace_seconds": timing.grace_seconds,
        }
    )


@router.get(CONSUMER_PATH + "/assignment")
async def assignment(
    asking: AtLeader, incarnation: Annotated[str, Query(min_length=1, max_length=200, pattern=PRINTABLE)]
) -> Response:
    """What the consumer owns, whenever it changes, as events. Holding this stream open is being connected."""
    stream: EventStream[PushedAssignment] = EventStream("assignment", lambda pushed: pushed)
    await asking.ask(Attach, incarnation=incarnation, stream=stream)
    served = asking.served

    async def events() -> AsyncIterator[bytes]:
        try:
            async for event in stream.events(served.leader.timing.heartbeat_seconds):
                yield event
        finally:
            gone = Detach(key=asking.key, consumer=asking.consumer, incarnation=incarnation, stream=stream)
            served.leader.submit(gone)

    return response(events())


@router.post(CONSUMER_PATH + "/pulse", status_code=204)
async def pulse(asking: AtLeader, life: Life) -> None:
    """The answer to a heartbeat: the consumer hears."""
    await asking.ask(Pulse, incarnation=life.incarnation)


@router.post(CONSUMER_PATH + "/released", status_code=204)
async def released(asking: AtLeader, said: Released) -> None:
    """Buckets that the consumer was asked to release and has let go of."""
    buckets = tuple(ReleasedBucket(one.segment_id, one.bucket_start, one.generation) for one in said.buckets)
    await asking.ask(Release, incarnation=said.incarnation, buckets=buckets)


@router.post(CONSUMER_PATH + "/drained", status_code=204)
async def drained(asking: AtLeader, said: DrainedSegments) -> None:
    """Sealed segments that are read and acknowledged to their end."""
    segments = tuple(ReadSegment(one.segment_id, one.generation) for one in said.segments)
    await asking.ask(Drained, incarnation=said.incarnation, segments=segments)


@router.delete(CONSUMER_PATH, status_code=204)
async def goodbye(
    asking: AtLeader, incarnation: Annotated[str, Query(min_length=1, max_length=200, pattern=PRINTABLE)]
) -> None:
    """The consumer leaves for good. What it read goes to others at once."""
    await asking.ask(Goodbye, incarnation=incarnation)


async def _answered(leader: SessionLeader, request: Request) -> None:
    leader.submit(request)
    try:
        await asyncio.wait_for(asyncio.wrap_future(request.done), ANSWER_SECONDS)
    except (TimeoutError, CancelledError):
        raise StoreUnavailable("the leader has not answered in time; ask again") from None


def layout_document(found: FedLayout) -> dict[str, object]:
    """As clients are told."""
    published = found.published
    return {
        "topic_id": published.topic_id,
        "topic": published.name,
        "data_plane": published.data_plane,
        "epoch": published.layout.epoch,
        "next_segment_id": published.layout.next_segment_id,
        "leader": found.leader,
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


def segments_document(found: SegmentList) -> dict[str, object]:
    """As consumers without a session are told."""
    layout = found.layout
    document: dict[str, object] = {
        "topic_id": found.topic_id,
        "topic": found.topic,
        "data_plane": found.data_plane,
        "epoch": layout.epoch,
        "segments": [
            {
                "segment_id": segment.segment_id,
                "range_start": segment.hash_range.start,
                "range_end": segment.hash_range.end,
                "state": segment.state,
                "parent_ids": segment.parent_ids,
                "created_epoch": segment.created_epoch,
                "backing_topic": found.backing_topics[segment.segment_id],
            }
            for _, segment in sorted(layout.segments.items())
        ],
    }
    return document if found.as_of is None else {**document, "as_of": found.as_of}


def _json(document: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(document), status, headers=headers, media_type="application/json")


async def _refusal(_request: HttpRequest, error: Exception) -> Response:
    refused = cast(CleaveError, error)
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
    headers = {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(refused, Retryable):
        headers["Retry-After"] = str(math.ceil(refused.delay_seconds))
    return _json({"reason": refused.message, "kind": type(error).__name__}, status, headers)


async def _wrong_form(_request: HttpRequest, error: Exception) -> Response:
    first = cast(RequestValidationError, error).errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["loc"][0] == "path":
        reason = f"{where} = {shown(first.get('input'))} is no name: {_NAMES}"
        return _json({"reason": reason, "kind": "InvalidInput"}, 400)
    return _json({"reason": f"{where}: {first['msg']}", "kind": "InvalidInput"}, 412)


async def _no_such_call(request: HttpRequest, error: Exception) -> Response:
    """A name with a slash in it makes a path that is none, whether it was written as %2F or not."""
    status = cast(HTTPException, error).status_code
    if status == 404 and request.url.path.startswith(f"{_PREFIX}/"):
        reason = f"{shown(request.url.path)} names no call here: {_NAMES}, or the path is misspelt"
        return _json({"reason": reason, "kind": "InvalidInput"}, 400)
    kind = "NotFound" if status == 404 else "InvalidInput"
    return _json(
        {"reason": f"{request.method} {shown(request.url.path)}: no such call", "kind": kind}, status
    )


async def _send_there(request: HttpRequest, error: Exception) -> Response:
    address = cast(_AskLeader, error).address
    query = f"?{request.url.query}" if request.url.query else ""
    return RedirectResponse(f"{address}{request.url.path}{query}", 307)
