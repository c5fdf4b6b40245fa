"""A consumer or reader of Pulsar's library that the test scripts: what has arrived, and who waits for more.

Give it where the library's own is asked for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

import pulsar

Message = TypeVar("Message")


class ScriptedLibrary(Generic[Message]):
    """As the library has it, below its Python classes and as one of these."""

    def __init__(self) -> None:
        self._consumer = self
        self.is_up = True
        self.queue: deque[Message] = deque()
        self.awaiting: deque[Callable[[object, object], None]] = deque()

    def arrive(self, *messages: Message) -> None:
        """These have come over."""
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
