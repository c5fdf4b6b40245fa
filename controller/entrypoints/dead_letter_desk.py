"""Dead letters of a subscription, listed by the command line and over HTTP."""

from __future__ import annotations

import base64
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from controller.bootstrap import Application
from controller.client.dead_letters import DeadLetter, DeadLetterReader, reading_dead_letters
from controller.dataplane.base import Position
from controller.services.dead_letters import DeadLetterLog, DeadLetterLogs

CHUNK = 500
"""Messages read at a time."""


@dataclass(frozen=True, slots=True)
class Letters:
    """The log that they lie in, how many have to be put back, some of these, and where in the log the last of them lies if others come
    behind it.
    """

    log: str
    count: int
    rows: list[dict[str, Any]]
    goes_on_after: Position | None = None


def look(
    app: Application, topic: str, subscription: str, limit: int, *, after: Position | None = None
) -> Letters:
    """`limit` of them, the oldest first, or the first behind a position in their log. Raises TopicNotFound, SubscriptionNotFound;
    NotFound where there never were any.
    """
    log, count = _found(app, topic, subscription)
    letters: list[DeadLetter] = []
    if count:
        with (
            closing(app.log_client(log.data_plane)) as logs,
            reading_dead_letters(logs, log.backing_topic) as reader,
        ):
            letters = _behind(reader, after, min(limit + 1, count), count)
    rows = [_row(letter) for letter in letters[:limit]]
    return Letters(
        log.backing_topic, count, rows, letters[limit - 1].message.position if len(letters) > limit else None
    )


def _behind(reader: DeadLetterReader, after: Position | None, wanted: int, count: int) -> list[DeadLetter]:
    """The first `wanted` of the `count` behind that position. The log is read from its beginning: nothing there is acknowledged."""
    found: list[DeadLetter] = []
    seen = 0
    while len(found) < wanted and seen < count:
        letters = reader.read(min(wanted if after is None else CHUNK, count - seen))
        if not letters:
            break
        seen += len(letters)
        found += [one for one in letters if after is None or one.message.position > after]
    return found[:wanted]


def _found(cleave: Application, topic: str, subscription: str) -> tuple[DeadLetterLog, int]:
    """The log, and how many messages it has to put back."""
    desk = DeadLetterLogs(cleave.store, cleave.planes)
    log = desk.find(topic, subscription)
    return log, desk.count(log)


def _row(letter: DeadLetter) -> dict[str, Any]:
    origin = letter.origin
    found: dict[str, Any] = {} if origin is None else msgspec.structs.asdict(origin)
    for name in ("parked_at", "published_at"):
        at_ms = found.pop(f"{name}_ms", None)
        found[name] = None if at_ms is None else datetime.fromtimestamp(at_ms / 1000, UTC)
    return {
        "topic": None, "subscription": None, "segment_id": None, "position": None, "deliveries": None, "error": None, "consumer": None,
        **found,
        "key": None if letter.key is None else letter.key.decode(errors="replace"),
        "bytes": len(letter.payload),
        "payload": base64.b64encode(letter.payload).decode(),
    }  # fmt: skip
