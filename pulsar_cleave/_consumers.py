"""Contains the common base of all consumers."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from controller.client.arguments import checks_arguments
from controller.client.closing import ClosesOnExit
from controller.client.polling_consumer import PollingConsumer
from pulsar_cleave._messages import Message
from pulsar_cleave._schemas import Schema

SLICE_SECONDS = 10.0
"""Time after which a `receive` without a timeout repeats its request."""


InnerConsumer = TypeVar("InnerConsumer", bound=PollingConsumer[Any])


@checks_arguments
class Consumer(ClosesOnExit, Generic[InnerConsumer]):
    """Returns messages one by one from the batches that the inner consumer reads."""

    def __init__(self, inner: InnerConsumer, topic: str, schema: Schema | None) -> None:
        """Wrap the inner consumer. For `Client`."""
        self._inner, self.topic, self._schema = inner, topic, schema
        self._waiting: deque[Message] = deque()
        self._is_paused = False

    def receive(self, timeout_seconds: float | None = None) -> Message | None:
        """Return the next message, waiting up to `timeout_seconds`, or without a limit if None. Return None
        if there is none in that time.

        Raises InvalidInput after `close`; NotFound if the topic or subscription was deleted; FencedOut if
        another stream consumer or member of the group took this name; DataGone if a checkpoint consumer's
        next messages were deleted; DataPlaneUnavailable or StoreUnavailable if there is nothing to read and a
        log was out of reach for longer than `patience_seconds`. After these two, call it again. A stream
        consumer or member of a group raises TokenOutOfTime if the workers refused its tokens for longer than
        `patience_seconds`, and then at every call: close it and create another.
        """
        messages = self.receive_many(1, timeout_seconds)
        return messages[0] if messages else None

    def receive_many(self, most: int = 500, timeout_seconds: float | None = None) -> tuple[Message, ...]:
        """Return up to `most` messages: wait for the first message as `receive` does, and add further
        messages that are available without waiting. A stream or checkpoint consumer adds only the rest of the
        batch that was read from the bucket or segment, so fewer messages may be returned although more are
        available. Empty after the timeout. Raises the errors of `receive`.
        """
        self._demand_open()
        while not self._has_waiting():
            slice_seconds = SLICE_SECONDS if timeout_seconds is None else timeout_seconds
            self._waiting.extend(self._read(most, slice_seconds))
            if timeout_seconds is not None:
                break
        count = min(most, len(self._waiting)) if self._has_waiting() else 0
        return tuple(self._waiting.popleft() for _ in range(count))

    def __iter__(self) -> Iterator[Message]:
        """Iterate over messages until the consumer is closed, and then raise InvalidInput. Raises the errors
        of `receive`.
        """
        while True:
            message = self.receive()
            if message is not None:
                yield message

    def pause(self) -> None:
        """Deliver no messages until `resume`. The consumer keeps its buckets or segments, except those that are
        assigned to another consumer. For any thread.

        A bucket or segment with messages that were fetched and not yet returned by `receive` is released only
        after `resume`. Continue to call `receive` with a timeout: it returns None, and raises the error if the
        consumer can never continue, such as FencedOut. A member of a group releases segments only in `receive`
        and `kept`.
        """
        self._demand_open()
        self._inner.pause()  # before the flag, so that no further batch is read behind messages that are kept back
        self._is_paused = True

    def resume(self) -> None:
        """Deliver messages again. For any thread."""
        self._demand_open()
        self._is_paused = False
        self._inner.resume()

    def close(self, timeout_seconds: float | None = None, *, leave: bool = True) -> None:
        """Close the consumer within `timeout_seconds` (default: 30). Unacknowledged messages are delivered
        again.

        Later calls that receive, pause, resume, acknowledge, or move a checkpoint consumer raise InvalidInput,
        and so does a `receive` that waits in another thread. With `leave=False` the session of a stream
        consumer, or of a member of a group, is kept for the grace period, so that a process that restarts
        under the same name keeps its buckets or segments. Idempotent.
        """
        self._begin_close(timeout_seconds)
        self._inner.close(timeout_seconds, leave=leave)

    @abstractmethod
    def _read(self, most: int, timeout_seconds: float) -> list[Message]:
        """Return the next messages of the inner consumer, waiting up to `timeout_seconds`. Empty if there are
        none. `most` is the largest number of messages to take; a consumer that reads in batches returns a
        whole batch.
        """

    @abstractmethod
    def _holds(self, message: Message) -> bool:
        """Return True if the ownership that the message came from still exists. If False, the message is
        delivered again.
        """

    def _has_waiting(self) -> bool:
        """Drop messages that no longer belong to this consumer from the front of the buffer. Return True if a
        message is left and the consumer is not paused.
        """
        while self._waiting and not self._holds(self._waiting[0]):
            self._waiting.popleft()
        return bool(self._waiting) and not self._is_paused
