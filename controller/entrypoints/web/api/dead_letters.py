"""Dead letters of a subscription: the oldest, with their payloads."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, Field

from controller.entrypoints import dead_letter_desk
from controller.entrypoints.web.acting import AtDesk
from controller.entrypoints.web.api.paging import Asked, Page
from controller.entrypoints.web.asked import Topic
from controller.entrypoints.web.demands import ADMINISTER, DemandingRoute
from controller.entrypoints.web.paths import TOPIC_PATH, Name
from controller.entrypoints.web.refusals import REFUSALS
from controller.questions.page_keys import write_keys

router = APIRouter(route_class=DemandingRoute, responses=REFUSALS, tags=["dead letters"])
_PATH = TOPIC_PATH + "/subscriptions/{subscription}/dead-letters"


class DeadLetter(BaseModel):
    """A message that could not be handled; null where another program put it there and says no more."""

    topic: str | None = Field(examples=["topic://acme/shop/orders"])
    subscription: str | None = Field(examples=["billing"])
    segment_id: int | None
    position: list[int] | None = Field(examples=[[17]])
    deliveries: int | None = Field(description="How often it was handled, or begun, in vain.")
    error: str | None = Field(examples=["ValueError: no such account"])
    consumer: str | None = Field(examples=["a"])
    parked_at: datetime | None = Field(examples=["2026-11-21T03:00:00Z"])
    published_at: datetime | None
    key: str | None = Field(examples=["customer-17"])
    bytes: int = Field(description="Of its payload.")
    payload: str = Field(description="In base64.", examples=["eyJhbW91bnQiOiAxMn0="])


class DeadLetters(Page[DeadLetter]):
    """A page of them, the log that they lie in, and how many have to be put back."""

    log: str = Field(examples=["persistent://acme/shop/orders-billing-DLQ"])
    count: int = Field(examples=[3])


@router.get(_PATH, dependencies=[ADMINISTER], response_model=DeadLetters)
def list_dead_letters(acting: AtDesk, topic: Topic, subscription: Name, paging: Asked) -> dict[str, Any]:
    """Dead letters, the oldest first. They are read alone: who reads them besides is cut off."""
    [after] = paging.after([tuple])
    found = dead_letter_desk.look(acting.app, topic, subscription, paging.limit, after=after)
    following = None if found.goes_on_after is None else write_keys([found.goes_on_after])
    return {"log": found.log, "count": found.count, "items": found.rows, "next": following}
