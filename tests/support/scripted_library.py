"""A consumer or reader of Pulsar's library that the test scripts: the arrived messages, and the calls that wait for more.

Pass it in place of the library's own object.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

import pulsar

from controller.dataplane.pulsar.admin import Deadline

Message = TypeVar("Message")


class ScriptedLibrary(Generic[Message]):
    """The library's object, both below its Python classes and as one of these."""

    def __init__(self) -> None:
        self._consumer = self
        self.is_up = True
        self.queue: deque[Message] = deque()
        self.awaiting: deque[Callable[[object, object], None]] = deque()

    def arrive(self, *messages: Message) -> None:
        """Let these messages arrive, and give them to waiting calls."""
        self.queue.extend(messages)
        while self.awaiting and self.queue:
            self.awaiting.popleft()(pulsar.Result.Ok, self.queue.popleft())

    # As the library.

    def is_connected(self) -> bool:
        return self.is_up

    def receive(self, _timeout_ms: int) -> Message:
        if not self.queue:
            raise pulsar.Timeout
        return self.queue.popleft()

    def receive_async(self, callback: Callable[[object, object], None]) -> None:
        self.awaiting.append(callback)
        self.arrive()


class IdleCursors:
    """In place of the cursors on a broker. No log is drained, and all calls have time."""

    def deadline(self) -> Deadline:
        return Deadline(30.0)

    def is_drained(self, *_: object) -> bool:
        return False

    def left(self, *_: object, **__: object) -> None:
        return None


class IdleConnections:
    """In place of the connections to a broker. Nothing is closed."""

    def close_aside(self, *_opened: object) -> None:
        """Close nothing."""
