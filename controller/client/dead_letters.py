"""Stores dead letters, which are messages that could not be processed, in the order of their keys, and reads
them. After how many failures a message becomes a dead letter is decided in `message_delivery`.

The leader of the topic creates the dead-letter log of a subscription (`services/dead_letters`). A message is
first appended to the log under its own key and acknowledged afterwards: a crash in between stores it twice,
but loses none. The key of the message is held until then, so the messages of a key are stored in their order.

A stored message is one line of JSON with the origin of the message and its last error (`Origin`), a line
feed, and the unchanged payload. Any client of the data plane can read it.
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
from controller.client.closing import ClosesOnExit
from controller.dataplane.log_client import LogClient, LogMessage, LogReader, OutgoingMessage
from controller.domain.delivery_events import REDRIVE
from controller.domain.errors import CleaveError, SegmentNotFound
from controller.forks import OneProcess

_POLL_SECONDS = 1.0


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """The origin of a dead letter, and the reason why it is one."""

    topic: str
    subscription: str
    segment_id: int
    position: tuple[int, ...]
    published_at_ms: int
    deliveries: int
    """Number of deliveries that failed or killed their process."""
    error: str | None
    """Last error of the processing."""
    consumer: str
    """Name of the consumer that stored the dead letter."""
    parked_at_ms: int

    def written(self, payload: bytes) -> bytes:
        """Return the stored form: this origin as a line of JSON, followed by the payload."""
        return msgspec.json.encode(self) + b"\n" + payload


# The decoder is created here because two threads that first decode a type at the same time end the process.
_ORIGIN = msgspec.json.Decoder(Origin)


class DeadLetter(NamedTuple):
    """One message of a dead-letter log.

    A message that another program stored has no origin, and its payload is the stored payload.
    """

    origin: Origin | None
    key: bytes | None
    payload: bytes
    """Payload of the original message."""
    message: LogMessage
    """The message as stored in the dead-letter log."""

    @classmethod
    def of(cls, message: LogMessage) -> Self:
        """Return the dead letter that a message of the dead-letter log contains. Its origin is None, and its
        payload the whole payload, if the first line is not the JSON of an `Origin`.
        """
        head, _, payload = message.payload.partition(b"\n")
        try:
            return cls(_ORIGIN.decode(head), message.key, payload, message)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return cls(None, message.key, message.payload, message)


class DeadLetterLog:
    """Appends messages to the dead-letter log of one subscription. Safe to use from any thread."""

    def __init__(self, logs: LogClient, ask: Callable[[str, Mapping[str, object]], Any]) -> None:
        """Create the object; the log itself is created at the first message. `ask` sends a worker a request
        of a consumer of the subscription (`StreamConsumer.ask`).
        """
        self._logs, self._ask = logs, ask
        # Each process numbers its batches from 1, so each process needs a producer name that was never used
        # before.
        self._producer = f"dead-letters-{uuid.uuid4().hex}"
        self._lock = threading.Lock()
        self._number = 0
        self._backing_topic: str | None = None

    def put(self, origin: Origin, message: LogMessage) -> None:
        """Append the message, with its origin, to the dead-letter log; when the method returns, the message is
        stored. The message keeps its key and its metadata. The caller acknowledges the message afterwards.

        The first call requests a worker to create the log unless the log exists. The next call after a failed request
        or a SegmentNotFound repeats the request. Raises the errors of `ask` and of `LogClient.append`. After an error
        the message may be stored nevertheless, and a repeated call stores the message again.
        """
        payload = origin.written(message.payload)
        outgoing = OutgoingMessage(payload, message.key, metadata=message.metadata)
        with self._lock:  # the numbers of a producer must increase
            if self._backing_topic is None:
                self._backing_topic = str(self._ask("dead-letters", {})["backing_topic"])
            self._number += 1
            try:
                self._logs.append(
                    self._backing_topic, [outgoing], producer=self._producer, sequence=self._number
                )
            except SegmentNotFound:
                self._backing_topic = None  # the log was deleted; the next attempt has it created again
                raise


@checks_arguments
class DeadLetterReader(OneProcess, ClosesOnExit):
    """Reads a dead-letter log from its first unacknowledged message. Created by `reading_dead_letters`."""

    def __init__(self, reader: LogReader, arrived: threading.Event) -> None:
        """Read from `reader`, which the object closes. `arrived` is set when messages may have arrived."""
        self._reader, self._arrived = reader, arrived

    def read(self, count: int, *, timeout_seconds: float = 30.0) -> list[DeadLetter]:
        """Return the next dead letters, in the order of the log, at most `count`. Wait up to `timeout_seconds` until
        `count` letters have arrived; then return the letters that have arrived, perhaps none. With 0 seconds the
        letters that are available at once are returned. A returned letter is not returned again by this reader, but
        by the next reader unless `acknowledge` is called.

        An error behind the first letter ends the wait, and the letters before the error are returned. A later call
        raises the error if it persists. Raises the errors of `LogReader.read` if no letter was read, and InvalidInput
        after `close`.
        """
        self._demand_open()
        letters: list[DeadLetter] = []
        deadline = time.monotonic() + timeout_seconds
        while len(letters) < count:
            self._arrived.clear()
            try:
                messages = self._reader.read(count - len(letters))
            except CleaveError:
                if not letters:
                    raise
                break
            letters += map(DeadLetter.of, messages)
            remaining_seconds = deadline - time.monotonic()
            if not messages:
                if remaining_seconds <= 0:
                    break
                self._arrived.wait(min(remaining_seconds, _POLL_SECONDS))
        return letters

    def acknowledge(self, letter: DeadLetter) -> None:
        """Acknowledge this dead letter and all before it, so that they are not read again. Raises
        InvalidInput after `close`, and the errors of `LogReader.acknowledge`.
        """
        self._demand_open()
        self._reader.acknowledge(letter.message.position)

    def close(self) -> None:
        """Close the reader."""
        self._is_closed = True
        self._reader.close()

    def _kind(self) -> str:
        return "DeadLetters"


@checked
@contextmanager
def reading_dead_letters(logs: LogClient, backing_topic: str) -> Iterator[DeadLetterReader]:
    """Open the dead-letter log at the address `backing_topic`, yield its reader, and close the reader at the end of
    the block. A log has one reader at a time: the previous reader is disconnected.

    Dead letters that the block does not acknowledge are read again by the next reader. Raises the errors of
    `LogClient.open_reader`.
    """
    arrived = threading.Event()
    reader = logs.open_reader(
        backing_topic, REDRIVE, owner="dead letters", live_owners=(), on_arrival=arrived.set, bucket=None
    )
    with DeadLetterReader(reader, arrived) as letters:
        yield letters
