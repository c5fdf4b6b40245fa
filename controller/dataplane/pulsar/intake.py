"""Taking messages from the library in the reader's own thread, and being told when there are some.

A listener costs seven times as much a message: the library's thread calls Python for each, and both threads want the interpreter. A
reader with a listener also keeps six descriptors and a thread for ever when it and its client are closed (library 3.13).
Here that thread calls once for the first message that comes while nothing is there; the rest is taken without waiting. The calls are
the library's own below its Python classes, which offer no way to be told.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import pulsar

_GIVEN_BACK_WITHIN_SECONDS = 1.0
"""It takes a millisecond."""


class Intake:
    """What has arrived for one consumer or reader. `take` is for one thread."""

    def __init__(self, opened: pulsar.Consumer | pulsar.Reader, on_arrival: Callable[[], None]) -> None:
        """`on_arrival` is called from the library's thread, or from within `take`, and must raise nothing."""
        self._receive: Callable[[int], Any]
        self._receive_async: Callable[[Callable[[pulsar.Result, Any], None]], None]
        if isinstance(opened, pulsar.Reader):
            self._receive, self._receive_async = opened._reader.read_next, opened._reader.read_next_async
        else:
            self._receive, self._receive_async = opened._consumer.receive, opened._consumer.receive_async
        self._on_arrival = on_arrival
        self._first: deque[Any] = deque()
        self._is_awaited = False
        self._given_back = threading.Event()

    def take(self, limit: int) -> list[Any]:
        """At most so many messages in the order of their arrival, as the library has them. After fewer, `on_arrival` tells of the next
        one.
        """
        if self._is_awaited:
            return []
        receive = self._receive
        found = [self._first.popleft()] if self._first else []
        try:
            while len(found) < limit:
                found.append(receive(0))
        except pulsar.PulsarException:  # nothing more just now, or it is closed
            self.begin()
        return found

    def begin(self) -> None:
        """Have the next arrival told. The message that tells it is the next one that is taken."""
        self._is_awaited = True
        self._receive_async(self._arrived)

    def close(self) -> None:
        """Between the closing of the consumer or reader and that of its client: the library gives back the call that waits for a message in a
        thread of its own, and on a busy machine a client that is closed before that keeps the thread and six descriptors for ever
        (library 3.13). They are kept, too, as long as anything of the consumer is, so nothing of it is kept here.
        """
        if self._is_awaited:
            self._given_back.wait(_GIVEN_BACK_WITHIN_SECONDS)
        self._receive, self._receive_async = _receive_nothing, _await_nothing

    def _arrived(self, result: pulsar.Result, message: Any) -> None:
        if result != pulsar.Result.Ok:  # closed; whoever closed it tells
            self._given_back.set()
            return
        self._first.append(message)
        self._is_awaited = False
        self._on_arrival()


def _receive_nothing(_timeout_ms: int) -> Any:
    raise pulsar.AlreadyClosed


def _await_nothing(callback: Callable[[pulsar.Result, Any], None]) -> None:
    callback(pulsar.Result.AlreadyClosed, None)
