"""Dead letters: messages that could not be handled, put away in the order of their keys, and read back.

A subscription's dead-letter log is made by the leader of its topic (`services/dead_letters`). A message is appended to it first, under
its own key, and acknowledged after that: a crash in between puts it there twice, and none is lost. Since its key is held until then,
messages of one key lie there in their order.

What is stored is one line of JSON that says where the message came from and why it is here (`Origin`), a line feed, and then the
message's payload as it was. Any client of the data plane can read that.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, Self

import msgspec

from controller.client.arguments import checked, checks_arguments
from controller.client.closing import ClosedByWith
from controller.dataplane.base import LogClient, LogMessage, LogReader, OutgoingMessage
from controller.domain.deliveries import REDRIVE
from controller.domain.errors import SegmentNotFound
from controller.forks import OneProcess

_LOOK_SECONDS = 1.0


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Where a dead letter came from, and why it is one."""

    topic: str
    subscription: str
    segment_id: int
    position: tuple[int, ...]
    published_at_ms: int
    deliveries: int
    """How often it was handled, or begun, in vain."""
    error: str | None
    """What happened at last."""
    consumer: str
    """Who put it here."""
    parked_at_ms: int

    def written(self, payload: bytes) -> bytes:
        """As it is stored, with the message's payload."""
        return msgspec.json.encode(self) + b"\n" + payload


# Made here: two threads that decode a type for the first time end the process.
_ORIGIN = msgspec.json.Decoder(Origin)


class DeadLetter(NamedTuple):
    """One message of a dead-letter log. One that another program put there has no origin, and its payload is as it lies there."""

    origin: Origin | None
    key: bytes | None
    payload: bytes
    """The message's own."""
    message: LogMessage
    """As it lies in the dead-letter log."""

    @classmethod
    def of(cls, message: LogMessage) -> Self:
        """As it was read."""
        head, _, payload = message.payload.partition(b"\n")
        try:
            return cls(_ORIGIN.decode(head), message.key, payload, message)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return cls(None, message.key, message.payload, message)


class DeadLetterLog:
    """Puts messages into the dead-letter log. For any thread."""

    def __init__(self, logs: LogClient, ask: Callable[[str, Mapping[str, object]], Any]) -> None:
        """`ask` asks a worker as a consumer of the subscription; `StreamConsumer.ask`. The log is made at the first message."""
        self._logs, self._ask = logs, ask
        # Batches are numbered from 1 in each process, so each needs a name that nobody used before.
        self._producer = f"dead-letters-{uuid.uuid4().hex}"
        self._lock = threading.Lock()
        self._number = 0
        self._backing_topic: str | None = None

    def put(self, origin: Origin, message: LogMessage) -> None:
        """Append it; when this returns it is stored. Raises what stood in the way: it may be stored nevertheless."""
        payload = origin.written(message.payload)
        outgoing = OutgoingMessage(payload, message.key, metadata=message.metadata)
        with self._lock:  # the numbers of a producer go up
            if self._backing_topic is None:
                self._backing_topic = str(self._ask("dead-letters", {})["backing_topic"])
            self._number += 1
            try:
                self._logs.append(
                    self._backing_topic, [outgoing], producer=self._producer, sequence=self._number
                )
            except SegmentNotFound:
                self._backing_topic = None  # somebody deleted it; the next try has it made anew
                raise


@checks_arguments
class DeadLetterReader(OneProcess, ClosedByWith):
    """Reads a dead-letter log from its first message that nobody has acknowledged; `reading_dead_letters` makes it."""

    def __init__(self, reader: LogReader, arrived: threading.Event) -> None:
        self._reader, self._arrived = reader, arrived
        self._is_closed = False

    def read(self, count: int, *, timeout_seconds: float = 30.0) -> list[DeadLetter]:
        """The next `count`, or fewer when no more come in that time. Raises InvalidInput once it is closed."""
        self._demand_open()
        found: list[DeadLetter] = []
        deadline = time.monotonic() + timeout_seconds
        while len(found) < count:
            self._arrived.clear()
            messages = self._reader.read(count - len(found))
            found += map(DeadLetter.of, messages)
            left = deadline - time.monotonic()
            if not messages:
                if left <= 0:
                    break
                self._arrived.wait(min(left, _LOOK_SECONDS))
        return found

    def acknowledge(self, letter: DeadLetter) -> None:
        """This one and all before it are dealt with: they are not read again. Raises InvalidInput once it is closed."""
        self._demand_open()
        self._reader.acknowledge(letter.message.position)

    def close(self) -> None:
        """Read no more."""
        self._is_closed = True
        self._reader.close()

    def _kind(self) -> str:
        return "DeadLetters"


@checked
@contextmanager
def reading_dead_letters(
    logs: LogClient, backing_topic: str, *, owner: str = "dead letters"
) -> Iterator[DeadLetterReader]:
    """Read a dead-letter log, alone: whoever read it before is cut off. What is not acknowledged is read again the next time."""
    arrived = threading.Event()
    reader = logs.open_reader(
        backing_topic, REDRIVE, owner=owner, live_owners=(), on_arrival=arrived.set, bucket=None
    )
    with DeadLetterReader(reader, arrived) as letters:
        yield letters
