"""Routes of a consumer's session, and the explanation of missing deliveries. The topic's leader keeps sessions: another worker redirects
the client to the leader (307), or answers that no worker leads the topic (503).

The protocol as a client sees it: docs/reference/client-protocol.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal, TypeVar

from anyio import to_thread
from fastapi import APIRouter, Depends, Query
from fastapi import Request as HttpRequest
from fastapi.responses import Response
from pydantic import AfterValidator, BaseModel, ConfigDict, FailFast, Field
from starlette.concurrency import run_in_threadpool

from controller.bootstrap import ConsumerServices
from controller.domain.errors import LostRace, NotFound, StoreUnavailable
from controller.domain.formatting import printable
from controller.services import subscription_lag
from controller.services.consumer_sessions.requests import (
    Attach,
    Deregister,
    Detach,
    Drained,
    Heartbeat,
    PushedAssignment,
    Register,
    Release,
    ReportReasons,
    Request,
)
from controller.store.topics.bucket_owners import BucketReport, SubscriptionKey
from controller.store.topics.subscriptions import SubscriptionKind
from controller.web.paths import CONSUMER_PATH, PRINTABLE, TOPIC_PATH, ConsumerName, Name
from controller.web.refusals import LED, REFUSALS, OtherLeader, json_answer
from controller.web.route_rights import CONSUME, LOOK_UP, DemandingRoute, Holder
from controller.web.shared_parameters import Topic, on_data_plane, served_by
from controller.web.streams import EventStream, response, stream_of

ANSWER_SECONDS = 10.0
"""Seconds after which a request to a leader that has not answered fails as retryable."""
Asked = TypeVar("Asked", bound=Request)
router = APIRouter(route_class=DemandingRoute, responses={**REFUSALS, **LED}, tags=["clients: sessions"])
LONGEST_STANDING = 300
"""Maximum length of an owner's reason. The text may contain an error of the application, so it is escaped and not refused."""
Incarnation = Annotated[str, Query(min_length=1, max_length=200, pattern=PRINTABLE, examples=["f00d"])]
"""Incarnation of the consumer that sends the request, for requests without a body."""


class WhyNothingComes(BaseModel):
    """One bucket that the subscription reads: the columns of `inspect.buckets`, and the backlog of the segments that it waits for."""

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
    backlog: int | None = Field(
        description="Unread messages in `waits_for`; null if the bucket waits for no segment, or if they cannot be counted."
    )


class Begun(BaseModel):
    """The timing that a consumer has to keep: seconds between two heartbeats of its stream; seconds of silence after which the leader closes
    the stream, and the consumer stops reading; and the grace period, in which a disconnected consumer keeps its buckets.
    """

    topic_id: int
    heartbeat_seconds: float = Field(examples=[5.0])
    silent_seconds: float = Field(examples=[30.0])
    grace_seconds: float = Field(examples=[60.0])


class Life(BaseModel):
    """The incarnation of the consumer that sends the request."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"incarnation": "f00d"}]})

    incarnation: Annotated[str, Field(min_length=1, max_length=200, pattern=PRINTABLE)]


class Registration(Life):
    """A consumer that registers, and the kind that its subscription must have."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"incarnation": "f00d"}, {"incarnation": "f00d", "reads": "CHECKPOINT"}]
        }
    )

    reads: Literal[SubscriptionKind.STREAM, SubscriptionKind.CHECKPOINT] = SubscriptionKind.STREAM


class ReleasedBucketModel(BaseModel):
    """A released bucket, with the generation of the assignment that gave the bucket to the consumer."""

    segment_id: Annotated[int, Field(ge=0, lt=2**63)]
    bucket_start: Annotated[int, Field(ge=0, le=65_535)]
    generation: Annotated[int, Field(ge=0, lt=2**63)]


class Released(Life):
    """Released buckets: their messages are settled and their readers closed."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "incarnation": "f00d",
                    "buckets": [{"segment_id": 0, "bucket_start": 49152, "generation": 1}],
                }
            ]
        }
    )

    buckets: Annotated[list[ReleasedBucketModel], Field(max_length=65_536), FailFast()]


class ReadToItsEnd(BaseModel):
    """A drained segment, with the generation of the assignment under which the consumer read it."""

    segment_id: Annotated[int, Field(ge=0, lt=2**63)]
    generation: Annotated[int, Field(ge=0, lt=2**63)]


class DrainedSegments(Life):
    """Sealed segments that the consumer has read to their end."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"incarnation": "f00d", "segments": [{"segment_id": 0, "generation": 1}]}]
        }
    )

    segments: Annotated[list[ReadToItsEnd], Field(min_length=1, max_length=10_000), FailFast()]


class SaidOf(ReleasedBucketModel):
    """The reason why a bucket delivers nothing and for how many seconds, with the generation of the assignment."""

    reason: Annotated[
        str,
        Field(min_length=1, max_length=LONGEST_STANDING, pattern=r"^[^\x00-\x1f\x7f]+$"),
        AfterValidator(lambda text: printable(text)[:LONGEST_STANDING]),
    ]
    seconds: Annotated[float, Field(ge=0, lt=1e9)]


class Reasons(Life):
    """Reasons by bucket; buckets that deliver messages are left out."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "incarnation": "f00d",
                    "buckets": [
                        {
                            "segment_id": 0,
                            "bucket_start": 0,
                            "generation": 1,
                            "reason": "paused",
                            "seconds": 2.5,
                        }
                    ],
                }
            ]
        }
    )

    buckets: Annotated[list[SaidOf], Field(max_length=65_536), FailFast()]


@dataclass(frozen=True, slots=True)
class RequestingConsumer:
    """The consumer that sends a request, and its subscription. Only the topic's leader answers `ask`."""

    served: ConsumerServices
    key: SubscriptionKey
    consumer: str
    subject: str
    is_remembered: bool = False
    """True if the leader's memory gave the topic's id, which may belong to a topic that was deleted a moment ago."""

    async def ask(self, kind: type[Asked], **more: Any) -> None:
        """Send a request of class `kind`, with the fields `more`, to the leader's mailbox, and wait until the leader
        has performed the request. Raises the error with which the leader answers.

        Raises StoreUnavailable if the leader does not answer within `ANSWER_SECONDS`; the leader may still perform
        the request afterwards. For a topic that was found in memory (`is_remembered`), raises LostRace instead of
        NotFound: the name may belong to another topic by now, which a repeated request finds.
        """
        request = kind(key=self.key, consumer=self.consumer, subject=self.subject, **more)
        self.served.leader.submit(request)
        try:
            await asyncio.wait_for(asyncio.wrap_future(request.done), ANSWER_SECONDS)
        except TimeoutError:
            raise StoreUnavailable("the leader has not answered in time; ask again") from None
        except NotFound as error:
            if not self.is_remembered:
                raise
            raise LostRace(f"{error.message}; if it was created again, register again", 0.1) from error


async def _by_database(
    request: HttpRequest, topic: Topic, subscription: Name, consumer: ConsumerName, holder: Holder
) -> RequestingConsumer:
    """Return the consumer of a request, if this worker holds the lease of the topic's shard. The database gives the topic's id and the
    address of its leader. `holder` is the grant of the token. Subscription and consumer are not checked here. Raises TopicNotFound,
    OtherLeader if another worker leads the topic, StoreUnavailable if no worker leads the topic, the leader has no address, or the database
    names this worker before or after it leads the topic.
    """
    served = served_by(request)
    topic_id, leader = await to_thread.run_sync(
        served.layouts.find, topic, limiter=request.app.state.session_threads
    )
    if not served.leader.leads(topic_id):
        # The database may name this worker for a moment before it has the lease, and after it has given the lease up.
        if leader is None or leader == request.app.state.address:
            raise StoreUnavailable(
                f"no worker leads {topic} at the moment, or the leader serves no HTTP; ask again"
            )
        raise OtherLeader(leader)
    return RequestingConsumer(served, SubscriptionKey(topic_id, subscription), consumer, holder.subject)


async def _by_memory(
    request: HttpRequest, topic: Topic, subscription: Name, consumer: ConsumerName, holder: Holder
) -> RequestingConsumer:
    """Return the consumer of a request at the leader. If this worker leads the topic and has its sessions in memory, the database is not
    queried: each heartbeat of thousands of consumers would be a query. The topic may then have been deleted moments ago, and the leader
    refuses the request. Requests that begin something use `_by_database`, because a topic of the same name may have been created a moment
    ago. Raises the errors of `_by_database`.
    """
    served = served_by(request)
    topic_id = served.leader.led_topic_id(topic)
    if topic_id is None:
        return await _by_database(request, topic, subscription, consumer, holder)
    key = SubscriptionKey(topic_id, subscription)
    return RequestingConsumer(served, key, consumer, holder.subject, is_remembered=True)


AtLeaderNow = Annotated[RequestingConsumer, Depends(_by_database)]
AtLeader = Annotated[RequestingConsumer, Depends(_by_memory)]


@router.get(
    TOPIC_PATH + "/subscriptions/{subscription}/why",
    dependencies=[LOOK_UP],
    response_model=list[WhyNothingComes],
)
async def why(request: HttpRequest, topic: Topic, subscription: Name) -> Response:
    """The owner of each bucket that the subscription reads, or the reason why no consumer reads the bucket. By hash range, then by segment
    id, then by bucket. Empty for an unknown subscription, a queue subscription, a checkpoint subscription without consumers, and if nothing
    remains to be read.
    """
    served = served_by(request)
    rows = await run_in_threadpool(served.layouts.why, topic, subscription)
    waited_for = {segment_id for row in rows for segment_id in row["waits_for"]}
    unread: Mapping[int, int] = {}
    if waited_for:
        app = served.app
        unread = await on_data_plane(
            request, subscription_lag.unread, app.store, app.planes, topic, subscription, waited_for
        )
    return json_answer([{**row, "backlog": _in_all(unread, row["waits_for"])} for row in rows])


def _in_all(unread: Mapping[int, int], segment_ids: Sequence[int]) -> int | None:
    """Return the sum of these segments' backlogs in `unread`. None if `unread` lacks a segment, or if there are no segments."""
    return sum(unread[i] for i in segment_ids) if segment_ids and unread.keys() >= set(segment_ids) else None


@router.post(CONSUMER_PATH, dependencies=[CONSUME], response_model=Begun)
async def register(asking: AtLeaderNow, body: Registration) -> Response:
    """Begin a session, or resume the consumer's session. The answer has the timing that the consumer must keep.
    Afterwards the consumer must open the assignment stream within the grace period, and hold the stream open. The
    leader refuses the session if the subscription is not of the kind that the consumer reads.
    """
    await asking.ask(Register, incarnation=body.incarnation, reads=body.reads)
    timing = asking.served.leader.timing
    return json_answer(
        {
            "topic_id": asking.key.topic_id,
            "heartbeat_seconds": timing.heartbeat_seconds,
            "silent_seconds": timing.silent_seconds,
            "grace_seconds": timing.grace_seconds,
        }
    )


@router.get(
    CONSUMER_PATH + "/assignment",
    dependencies=[CONSUME],
    response_class=Response,
    responses=stream_of(
        "assignment",
        {
            "term": 1,
            "generation": 1,
            "epoch": 0,
            "origin": 1,
            "data_plane": "embedded",
            "buckets": [
                {
                    "segment_id": 0,
                    "bucket_start": 0,
                    "bucket_end": 16_383,
                    "buckets": 4,
                    "sealed": False,
                    "backing_topic": "segment://acme/shop/orders/0000-ffff-0",
                    "generation": 1,
                    "release": False,
                }
            ],
        },
    ),
)
async def assignment(asking: AtLeader, holder: Holder, incarnation: Incarnation) -> Response:
    """Events with the buckets that the consumer owns: first the present assignment, then the whole assignment at each
    change. A consumer is connected while it holds this stream open. When the stream ends, the consumer keeps its
    buckets for the grace period. An older stream of the session ends with the reason `superseded`. 409 if this
    incarnation has no session.
    """
    stream: EventStream[PushedAssignment] = EventStream("assignment", lambda pushed: pushed)
    await asking.ask(Attach, incarnation=incarnation, stream=stream)
    leader = asking.served.leader
    return response(
        stream,
        leader.timing.heartbeat_seconds,
        holder,
        end=lambda: leader.submit(
            Detach(key=asking.key, consumer=asking.consumer, incarnation=incarnation, stream=stream)
        ),
    )


@router.post(CONSUMER_PATH + "/pulse", status_code=204, dependencies=[CONSUME])
async def pulse(asking: AtLeader, life: Life) -> None:
    """Confirm a heartbeat."""
    await asking.ask(Heartbeat, incarnation=life.incarnation)


@router.post(CONSUMER_PATH + "/released", status_code=204, dependencies=[CONSUME])
async def released(asking: AtLeader, body: Released) -> None:
    """Record buckets that the consumer has released at the leader's request."""
    buckets = tuple((bucket.segment_id, bucket.bucket_start, bucket.generation) for bucket in body.buckets)
    await asking.ask(Release, incarnation=body.incarnation, buckets=buckets)


@router.post(CONSUMER_PATH + "/drained", status_code=204, dependencies=[CONSUME])
async def drained(asking: AtLeader, body: DrainedSegments) -> None:
    """Record sealed segments that are read and acknowledged to their end."""
    segments = tuple((segment.segment_id, segment.generation) for segment in body.segments)
    await asking.ask(Drained, incarnation=body.incarnation, segments=segments)


@router.post(CONSUMER_PATH + "/reasons", status_code=204, dependencies=[CONSUME])
async def reasons(asking: AtLeader, body: Reasons) -> None:
    """Replace the consumer's reasons why its buckets deliver nothing; `cleave consumers why` shows them."""
    buckets = tuple(
        BucketReport(bucket.segment_id, bucket.bucket_start, bucket.generation, bucket.reason, bucket.seconds)
        for bucket in body.buckets
    )
    await asking.ask(ReportReasons, incarnation=body.incarnation, buckets=buckets)


@router.delete(CONSUMER_PATH, status_code=204, dependencies=[CONSUME])
async def goodbye(asking: AtLeader, incarnation: Incarnation) -> None:
    """End the session. Other consumers get its buckets at once."""
    await asking.ask(Deregister, incarnation=incarnation)
