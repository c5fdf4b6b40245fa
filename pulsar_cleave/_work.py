"""Contains keyed processing with several threads, and the reader of its dead letters."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from controller.client.arguments import checks_arguments
from controller.client.closing import ClosesOnExit
from controller.client.dead_letters import DeadLetter as InnerLetter
from controller.client.dead_letters import DeadLetterReader
from controller.client.keyed_work import KeyedWork as InnerWork
from controller.client.lag import BucketLag
from controller.client.stream_consumer import Batch, BucketStatus
from controller.client.stream_consumer import StreamConsumer as InnerConsumer
from controller.client.work_observer import WorkObserver
from controller.dataplane.log_client import LogMessage
from controller.domain.errors import CleaveError
from pulsar_cleave._messages import Message, MessageId
from pulsar_cleave._schemas import Schema


class Handler(WorkObserver):
    """Calls the application's handler with messages of this package. For the threads of `KeyedWork`. `begun`
    must precede each call in the same thread.
    """

    def __init__(self, handle: Callable[[Message], Any], topic: str, schema: Schema | None) -> None:
        self._handle, self._topic, self._schema = handle, topic, schema
        self._begun = threading.local()

    def begun(self, batch: Batch, message: LogMessage) -> None:  # noqa: ARG002
        """Record the segment of the message that this thread processes next."""
        self._begun.segment_id = batch.segment_id

    def __call__(self, message: LogMessage) -> object:
        return self._handle(Message(self._topic, self._begun.segment_id, message, self._schema))


@checks_arguments
class KeyedWork(ClosesOnExit):
    """Calls a handler for each message on several threads, the messages of each key one after the other.
    Created by `Client.keyed_work`.

    For one thread, which must keep calling `run` or `turn`. If the handler raises, its message is processed
    again later, and the other messages of its key wait.
    """

    def __init__(self, consumer: InnerConsumer, work: InnerWork) -> None:
        """Wrap the inner objects. For `Client`."""
        self._consumer, self._work = consumer, work

    @property
    def running(self) -> int:
        """Number of messages that are being processed."""
        return self._work.running

    def run(self, is_stopping: Callable[[], bool]) -> None:
        """Receive and process messages until `is_stopping`, which is called at least once a second, returns
        True. Raises the errors of `turn`.
        """
        self._demand_open()
        self._work.run(is_stopping)

    def turn(self, timeout_seconds: float = 1.0) -> None:
        """Receive, acknowledge processed messages, and begin messages; wait up to `timeout_seconds` if there
        is nothing to do.

        Raises FencedOut if another consumer registered under the name, NotFound if the topic or subscription
        was deleted, DataPlaneUnavailable, Terminal for a bucket that can never be read, an exception of a handler
        that is not an `Exception`, and InvalidInput after `close`. The messages of other buckets go on if you call
        it again after an error of one bucket.
        """
        self._demand_open()
        self._work.turn(timeout_seconds)

    def pause(self) -> None:
        """Begin no message until `resume`; continue to call `turn`. For any thread."""
        self._demand_open()
        self._consumer.pause()

    def resume(self) -> None:
        """Begin messages again. For any thread."""
        self._demand_open()
        self._consumer.resume()

    def why(self) -> tuple[BucketStatus, ...]:
        """Return for each bucket of the subscription why no message of it is delivered, including keys that
        wait for a failed message. Raises StoreUnavailable if no worker responds.
        """
        return self._consumer.why()

    def lag(self) -> tuple[BucketLag, ...]:
        """Return the number of unacknowledged messages of each bucket. Raises StoreUnavailable."""
        return self._consumer.lag()

    def close(self, timeout_seconds: float | None = None, *, leave: bool = True) -> None:
        """Wait for running handlers and acknowledge processed messages, within `timeout_seconds` (default:
        30); then close the consumer, within that time again. Messages whose handlers run for longer are
        delivered again. With `leave=False`, or while handlers still run, the consumer keeps its buckets for
        the grace period.

        Later calls of `run`, `turn`, `pause` and `resume` raise InvalidInput. Idempotent. Raises the
        exception of a handler that is not an `Exception`.
        """
        self._begin_close(timeout_seconds)
        try:
            self._work.close(timeout_seconds)
        finally:
            self._consumer.close(timeout_seconds, leave=leave)


class DeadLetter:
    """A message that keyed work has stored in the dead-letter log of its subscription. Immutable."""

    __slots__ = ("_inner", "message")

    message: Message
    """The message, with its original value, key, properties and id. If another program stored the message in
    the log, the id has segment -1 and the position in the log.
    """

    def __init__(self, inner: InnerLetter, topic: str, schema: Schema | None) -> None:
        """Wrap a dead letter. For `DeadLetters`."""
        self._inner, origin = inner, inner.origin
        segment_id, stored = -1, inner.message._replace(payload=inner.payload)
        if origin is not None:
            segment_id = origin.segment_id
            stored = stored._replace(position=origin.position, published_at_ms=origin.published_at_ms)
        self.message = Message(topic, segment_id, stored, schema)

    @property
    def error(self) -> str | None:
        """Last error of the handler, or that the process ended while the message was handled. None if no error
        was recorded, and for a message that another program stored in the log.
        """
        return None if self._inner.origin is None else self._inner.origin.error

    @property
    def deliveries(self) -> int | None:
        """Number of deliveries that failed. None for a message that another program stored in the log."""
        return None if self._inner.origin is None else self._inner.origin.deliveries

    @property
    def parked_at(self) -> datetime | None:
        """Time at which the message was stored in the log. None for a message that another program stored."""
        origin = self._inner.origin
        return None if origin is None else datetime.fromtimestamp(origin.parked_at_ms / 1000, UTC)

    @property
    def message_id(self) -> MessageId:
        """Id of the message in its topic; with segment -1 for a message that another program stored in the
        log.
        """
        return self.message.message_id


@checks_arguments
class DeadLetters:
    """Reads the dead-letter log of a subscription. Created by `Client.dead_letters`. For one thread.

    Calls raise LostRace if another reader has replaced this one, and InvalidInput after the `with` block.
    """

    def __init__(self, reader: DeadLetterReader, topic: str, schema: Schema | None) -> None:
        """Wrap the reader. For `Client`."""
        self._reader, self._topic, self._schema = reader, topic, schema

    def receive_many(self, most: int = 100, timeout_seconds: float = 0.0) -> tuple[DeadLetter, ...]:
        """Return up to `most` dead letters that this reader has not returned yet, the earliest first. Waits
        up to `timeout_seconds` for the first. After an error behind the first, the received letters are
        returned, and a later call raises the error if it persists.

        Raises InvalidInput after the `with` block.
        """
        letters = self._reader.read(1, timeout_seconds=timeout_seconds)
        if letters and most > 1:
            with suppress(CleaveError):  # a later call raises the error if it persists
                letters += self._reader.read(most - 1, timeout_seconds=0.0)
        return tuple(DeadLetter(letter, self._topic, self._schema) for letter in letters)

    def acknowledge(self, letter: DeadLetter) -> None:
        """Acknowledge the dead letter and every earlier one, so that they are neither read again nor sent
        back to the topic.
        """
        self._reader.acknowledge(letter._inner)
