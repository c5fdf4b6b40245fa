"""Routes that count a consumer's deliveries across crashes, which every worker counts, and that provide the log of a subscription's dead
letters, which the leader of the topic creates.

The protocol as a client sees it: docs/reference/client-protocol.md.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends
from fastapi import Request as HttpRequest
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool

from controller.domain.delivery_events import DeliveryEvent
from controller.services import delivery_counts
from controller.services.dead_letters import find, make
from controller.store.topics.bucket_owners import SubscriptionKey
from controller.store.topics.deliveries import Ownership
from controller.web.paths import CONSUMER_PATH, TOPIC_PATH, ConsumerName, Name
from controller.web.refusals import LED, REFUSALS
from controller.web.route_rights import CONSUME, DemandingRoute, Holder
from controller.web.sessions import AtLeaderNow, Life, ReleasedBucketModel, RequestingConsumer
from controller.web.shared_parameters import Topic, on_data_plane, served_by

router = APIRouter(
    route_class=DemandingRoute,
    dependencies=[CONSUME],
    responses={**REFUSALS, **LED},
    tags=["clients: deliveries"],
)
Position = Annotated[list[Annotated[int, Field(ge=-1, lt=2**63)]], Field(min_length=1, max_length=8)]


class Owned(Life, ReleasedBucketModel):
    """A bucket, with the generation of the assignment that gave the bucket to the consumer."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"incarnation": "f00d", "segment_id": 0, "bucket_start": 0, "generation": 1}]
        }
    )


class Opened(Owned):
    """A bucket that the consumer begins to read at this message."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"incarnation": "f00d", "segment_id": 0, "bucket_start": 0, "generation": 1, "position": [17]}
            ]
        }
    )

    position: Position


class Delivered(Opened):
    """An event of this message's n-th delivery."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "incarnation": "f00d",
                    "segment_id": 0,
                    "bucket_start": 0,
                    "generation": 1,
                    "position": [17],
                    "event": "failed",
                    "deliveries": 1,
                    "error": "ValueError: no such account",
                }
            ]
        }
    )

    event: DeliveryEvent
    deliveries: Annotated[int, Field(ge=1, lt=2**31)]
    error: Annotated[str | None, Field(max_length=1000)] = None


class Troubled(BaseModel):
    """A message that failed, or whose delivery began and never ended."""

    position: list[int] = Field(examples=[[17]])
    deliveries: int
    deaths: int = Field(examples=[1])
    error: str | None = Field(examples=["ValueError: no such account"])


class Openings(BaseModel):
    """The number of consecutive consumer incarnations that began at the message, and the stored state of the messages from there on."""

    openings: int = Field(examples=[1])
    messages: list[Troubled]


async def _asker(
    request: HttpRequest, topic: Topic, subscription: Name, consumer: ConsumerName, holder: Holder
) -> RequestingConsumer:
    """Return the consumer that sends the request. `holder` is the grant of the token. Raises TopicNotFound; subscription and consumer are
    not checked.
    """
    served = served_by(request)
    topic_id, _ = await run_in_threadpool(served.layouts.find, topic)
    return RequestingConsumer(served, SubscriptionKey(topic_id, subscription), consumer, holder.subject)


Asker = Annotated[RequestingConsumer, Depends(_asker)]


def _ownership(asker: RequestingConsumer, body: Owned) -> Ownership:
    """Return the consumer's ownership of the bucket that the body names."""
    return Ownership(
        asker.key,
        asker.consumer,
        body.incarnation,
        body.segment_id,
        body.bucket_start,
        body.generation,
        asker.subject,
    )


@router.post(CONSUMER_PATH + "/opened")
async def opened(asker: Asker, body: Opened) -> Openings:
    """Record that a consumer begins to read a bucket at a message. The answer has the number of successive
    incarnations that began at this message, and the recorded deliveries from the message on. The records of earlier
    messages are deleted. 409 if the incarnation does not own the bucket.
    """
    openings, stored = await run_in_threadpool(
        delivery_counts.opened, asker.served.app.store, _ownership(asker, body), body.position
    )
    messages = [
        Troubled(
            position=list(delivery.position),
            deliveries=delivery.deliveries,
            deaths=delivery.deaths,
            error=delivery.error,
        )
        for delivery in stored
    ]
    return Openings(openings=openings, messages=messages)


@router.post(CONSUMER_PATH + "/closed", status_code=204)
async def closed(asker: Asker, body: Owned) -> None:
    """Record that a consumer closed a bucket without an error."""
    await run_in_threadpool(delivery_counts.closed, asker.served.app.store, _ownership(asker, body))


@router.post(CONSUMER_PATH + "/deliveries", status_code=204)
async def delivered(asker: Asker, body: Delivered) -> None:
    """Record an event of a delivery: begun, failed or ended."""
    await run_in_threadpool(
        delivery_counts.note,
        asker.served.app.store,
        _ownership(asker, body),
        body.position,
        body.event,
        body.deliveries,
        None if body.error is None else body.error.replace("\0", " "),
    )


class Logged(BaseModel):
    """The log of a subscription's dead letters."""

    data_plane: str = Field(examples=["embedded"])
    backing_topic: str = Field(examples=["dead-letters://acme/shop/orders/billing"])


@router.get(TOPIC_PATH + "/subscriptions/{subscription}/dead-letter-log")
async def dead_letter_log(request: HttpRequest, topic: Topic, subscription: Name) -> Logged:
    """Return the subscription's dead-letter log. 404 until a consumer has created it for a dead letter."""
    app = served_by(request).app
    log = await on_data_plane(request, find, app.store, app.planes, topic, subscription)
    return Logged(data_plane=log.data_plane, backing_topic=log.backing_topic)


@router.post(CONSUMER_PATH + "/dead-letters")
async def dead_letters(request: HttpRequest, asking: AtLeaderNow, _life: Life) -> Logged:
    """Return the address of the subscription's dead-letter log. Create the log and the log's subscription `redrive`,
    as far as they do not exist. An existing log keeps its messages. The call may be repeated after an error. The
    incarnation is required but not checked.
    """
    key, app = asking.key, asking.served.app
    log = await on_data_plane(request, make, app.store, app.planes, key.topic_id, key.name)
    return Logged(data_plane=log.data_plane, backing_topic=log.backing_topic)
