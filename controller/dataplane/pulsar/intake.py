"""Taking messages from the library in the reader's own thread, and being told when there are some.

A listener costs seven times as much a message: the library's thread calls Python for each, and both threads want the interpreter.
Here that thread calls once for the first message that comes while nothing is there; the rest is taken without waiting. The calls are
the library's own below its Python classes, which offer no way to be told.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pulsar


class Intake:
    """What has arrived for one consumer. `take` is for one thread."""

    def __init__(self, consumer: pulsar.Consumer, on_arrival: Callable[[], None]) -> None:
        """`on_arrival` is called from the library's thread, or from within `take`, and must raise nothing."""
        self._consumer: Any = consumer._consumer
        self._on_arrival = on_arrival
        self._first: deque[Any] = deque()
        self._is_awaited = False

    def take(self, limit: int) -> list[Any]:
        """At most so many messages in the order of their arrival, as the library has them. After fewer, `on_arrival` tells of the next
        one.
        """
        if self._is_awaited:
            return []
        receive = self._consumer.receive
        found = [self._first.popleft()] if self._first else []
        try:
            while len(found) < limit:
                found.append(receive(0))
        except pulsar.PulsarException:  # nothing more just now, or the consumer is closed
            self.begin()
        return found

    def begin(self) -> None:
        """Have the next arrival told. The message that tells it is the next one that is taken."""
        self._is_awaited = True
        self._consumer.receive_async(self._arrived)

    def _arrived(self, result: pulsar.Result, message: Any) -> None:
        if result != pulsar.Result.Ok:  # closed; whoever closed it tells
            return
        self._first.append(message)
        self._is_awaited = False
        self._on_arrival()
