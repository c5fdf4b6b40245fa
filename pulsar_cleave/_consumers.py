"""What consumers of all kinds share."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from controller.client.arguments import checks_arguments
from controller.client.closing import ClosedByWith
from pulsar_cleave._messages import Message
from pulsar_cleave._schemas import Schema

SLICE_SECONDS = 10.0
"""A `receive` without a timeout asks again after this time."""


class Inner(Protocol):
    """A consumer of `controller.client`."""

    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def close(self, timeout_seconds: float | None = None, *, leave: bool = True) -> None: ...


InnerConsumer = TypeVar("InnerConsumer", bound=Inner)


@checks_arguments
class Consumer(ClosedByWith, Generic[InnerConsumer]):
    """Gives out messages one by one, of the batches that the inner consumer reads."""

    def __init__(self, inner: InnerConsumer, topic: str, schema: Schema | None) -> None:
        """For `Client`."""
        self._inner, self.topic, self._schema = inner, topic, schema
        self._waiting: deque[Message] = deque()
        self._is_paused = False

    def receive(self, timeout_seconds: float | None = None) -> Message | None:
        """Return the next message. Waits for it for `timeout_seconds`, or without a limit if None; returns None after that time."""
        found = self.receive_many(1, timeout_seconds)
        return found[0] if found else None

    def receive_many(self, most: int = 500, timeout_seconds: float | None = None) -> tuple[Message, ...]:
        """Return up to `most` messages: wait for the first one as `receive` does, and add what has arrived. Empty after the timeout."""
        self._demand_open()
        while not self._has_waiting():
            slice_seconds = SLICE_SECONDS if timeout_seconds is None else timeout_seconds
            self._waiting.extend(self._read(most, slice_seconds))
            if timeout_seconds is not None:
                break
        count = min(most, len(self._waiting)) if self._has_waiting() else 0
        return tuple(self._waiting.popleft() for _ in range(count))

    def __iter__(self) -> Iterator[Message]:
        """Iterate over messages until the consumer is closed. Raises InvalidInput then."""
        while True:
            message = self.receive()
            if message is not None:
                yield message

    def pause(self) -> None:
        """Give out no messages until `resume`. The consumer keeps what it owns. May be called from any thread.

        Go on calling `receive`, so that the consumer hands over what others are to have.
        """
        self._demand_open()
        self._is_paused = True
        self._inner.pause()

    def resume(self) -> None:
        """Give out messages again. May be called from any thread."""
        self._demand_open()
        self._is_paused = False
        self._inner.resume()

    def close(self, timeout_seconds: float | None = None, *, leave: bool = True) -> None:
        """Close the consumer within `timeout_seconds` (default: 30). Messages that are not acknowledged are delivered again.

        Calls that receive, acknowledge, pause or seek raise InvalidInput from then on; a `receive` that waits in another thread ends
        with that error. With `leave=False` the session of a stream consumer, or of a member of a group, stays for the grace period,
        so that a process which starts again under the same name finds everything as it was. Safe to repeat.
        """
        self._begin_close(timeout_seconds)
        self._inner.close(timeout_seconds, leave=leave)

    @abstractmethod
    def _read(self, most: int, timeout_seconds: float) -> list[Message]:
        """Return messages of the inner consumer."""

    @abstractmethod
    def _holds(self, message: Message) -> bool:
        """Return True if the ownership that the message came from goes on. It is given out again otherwise."""

    def _has_waiting(self) -> bool:
        """Drop what is another consumer's by now. Return True if there is a message to give out."""
        while self._waiting and not self._holds(self._waiting[0]):
            self._waiting.popleft()
        return bool(self._waiting) and not self._is_paused
