"""Dead letters of a subscription, oldest first, with their payloads."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from contextlib import closing
from datetime import datetime
from typing import Any, Self

import msgspec
from pydantic import BaseModel, Field

from controller.actions.action import report
from controller.actions.context import Context
from controller.actions.fields import SubscriptionName
from controller.actions.responses import Row
from controller.actions.rights import Right
from controller.client.dead_letters import DeadLetter, DeadLetterReader, reading_dead_letters
from controller.clock import to_datetime
from controller.dataplane.log_client import Position
from controller.questions.page_keys import write_keys
from controller.questions.question import PageAnswer, PageRequest, TopicQuestion
from controller.services import dead_letters

CHUNK = 500
"""Number of messages per read."""
_SHOWN = ("parked_at", "key", "segment_id", "position", "deliveries", "bytes", "error")


class ListDeadLetters(PageRequest, TopicQuestion):
    """List the dead letters of a subscription, oldest first. Acknowledges none of them. Disconnects another reader of the log."""

    subscription: SubscriptionName


class DeadLetterDocument(BaseModel):
    """A message that could not be handled. A field is null if the message lacks it, for example because another
    program stored the message.
    """

    topic: str | None = Field(None, examples=["topic://acme/shop/orders"])
    subscription: str | None = Field(None, examples=["billing"])
    segment_id: int | None = None
    position: list[int] | None = Field(None, examples=[[17]])
    deliveries: int | None = Field(None, description="Number of deliveries whose handling began or failed.")
    error: str | None = Field(None, examples=["ValueError: no such account"])
    consumer: str | None = Field(None, examples=["a"])
    parked_at: datetime | None = Field(None, examples=["2026-11-21T03:00:00Z"])
    published_at: datetime | None = None
    key: str | None = Field(examples=["customer-17"])
    bytes: int = Field(description="Size of the payload.")
    payload: str = Field(description="In base64.", examples=["eyJhbW91bnQiOiAxMn0="])

    @classmethod
    def of(cls, letter: DeadLetter) -> Self:
        """Return the document of a dead letter, with the payload in base64 and the key as text, in which bytes that are not UTF-8 are
        replaced. A time that no calendar has, because a producer's clock was wrong, is null.
        """
        origin: dict[str, Any] = {} if letter.origin is None else msgspec.structs.asdict(letter.origin)
        for name in ("parked_at", "published_at"):
            at_ms = origin.pop(f"{name}_ms", None)
            origin[name] = None if at_ms is None else _time(at_ms)
        return cls(
            **origin,
            key=None if letter.key is None else letter.key.decode(errors="replace"),
            bytes=len(letter.payload),
            payload=base64.b64encode(letter.payload).decode(),
        )


def _time(instant_ms: int) -> datetime | None:
    """Return the time of an instant in milliseconds since the Unix epoch; None outside the years 1 to 9999."""
    try:
        return to_datetime(instant_ms)
    except (ValueError, OverflowError):
        return None


class DeadLettersAnswer(PageAnswer[DeadLetterDocument]):
    """A page of dead letters, their log, and the number of dead letters that can be redriven."""

    log: str = Field(examples=["persistent://acme/shop/orders-billing-DLQ"])
    count: int = Field(examples=[3])

    def sentence(self) -> str:
        """Return one sentence about the answer."""
        return f"{self.log}: {self.count} to redrive"

    def rows(self) -> Sequence[Row]:
        """Return the rows of the answer's table."""
        return [{name: getattr(letter, name) for name in _SHOWN} for letter in self.items]


def list_dead_letters(context: Context, request: ListDeadLetters) -> DeadLettersAnswer:
    """Return a page of dead letters, oldest first, and the number of all dead letters that can be put back. Reads their
    log without acknowledging, and disconnects another reader of the log unless that number is 0. Raises TopicNotFound,
    SubscriptionNotFound, NotFound if the log was never created, InvalidInput for an invalid page, Unsupported if
    the topic's data plane is not configured here or has no dead-letter logs, and the errors of the data plane.
    """
    [after] = request.keys([tuple])
    planes = context.app.planes
    log = dead_letters.find(context.store, planes, request.topic, request.subscription)
    count, limit = dead_letters.count(planes, log), request.size
    letters: list[DeadLetter] = []
    if count:
        with (
            closing(context.app.log_client(log.data_plane)) as client,
            reading_dead_letters(client, log.backing_topic) as reader,
        ):
            letters = _read_after(reader, after, min(limit + 1, count), count)
    is_last = len(letters) <= limit
    return DeadLettersAnswer(
        log=log.backing_topic,
        count=count,
        items=[DeadLetterDocument.of(letter) for letter in letters[:limit]],
        next=None if is_last else write_keys([letters[limit - 1].message.position]),
    )


def _read_after(reader: DeadLetterReader, after: Position | None, limit: int, count: int) -> list[DeadLetter]:
    """Return, oldest first, at most `limit` of the letters whose positions in the dead-letter log are after `after` (None:
    of all letters). Only the first `count` letters of the reader are read, fewer if no more arrive. The reader must not
    have been read from, because it begins at the first letter that was not put back; no letter is acknowledged.
    """
    result: list[DeadLetter] = []
    read_count = 0
    while len(result) < limit and read_count < count:
        letters = reader.read(min(limit if after is None else CHUNK, count - read_count))
        if not letters:
            break
        read_count += len(letters)
        result += [letter for letter in letters if after is None or letter.message.position > after]
    return result[:limit]


LIST_DEAD_LETTERS = report(
    "dead-letters list",
    "/topics/{topic}/subscriptions/{subscription}/dead-letters",
    ListDeadLetters,
    DeadLettersAnswer,
    list_dead_letters,
    right=Right.ADMINISTER,
)
ACTIONS = (LIST_DEAD_LETTERS,)
