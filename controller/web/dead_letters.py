"""Routes that provide the log of a subscription's dead letters. The leader of the topic creates the log.

The protocol as a client sees it: docs/reference/client-protocol.md.
"""

from __future__ import annotations

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool

from controller.services.dead_letters import find, make
from controller.web.paths import CONSUMER_PATH, TOPIC_PATH, Name
from controller.web.refusals import LED, REFUSALS
from controller.web.route_rights import CONSUME, DemandingRoute
from controller.web.sessions import AtLeaderNow, Life
from controller.web.shared_parameters import Topic, served_by

router = APIRouter(
    route_class=DemandingRoute,
    dependencies=[CONSUME],
    responses={**REFUSALS, **LED},
    tags=["clients: deliveries"],
)


class Logged(BaseModel):
    """The log of a subscription's dead letters."""

    data_plane: str = Field(examples=["embedded"])
    backing_topic: str = Field(examples=["dead-letters://acme/shop/orders/billing"])


@router.get(TOPIC_PATH + "/subscriptions/{subscription}/dead-letter-log")
async def dead_letter_log(request: HttpRequest, topic: Topic, subscription: Name) -> Logged:
    """Return the subscription's dead-letter log. 404 until a consumer has created it for a dead letter."""
    app = served_by(request).app
    log = await run_in_threadpool(find, app.store, app.planes, topic, subscription)
    return Logged(data_plane=log.data_plane, backing_topic=log.backing_topic)


@router.post(CONSUMER_PATH + "/dead-letters")
async def dead_letters(asking: AtLeaderNow, _life: Life) -> Logged:
    """Return the address of the subscription's dead-letter log. Create the log and the log's subscription `redrive`,
    as far as they do not exist. An existing log keeps its messages. The call may be repeated after an error. The
    incarnation is required but not checked.
    """
    key, app = asking.key, asking.served.app
    log = await run_in_threadpool(make, app.store, app.planes, key.topic_id, key.name)
    return Logged(data_plane=log.data_plane, backing_topic=log.backing_topic)
