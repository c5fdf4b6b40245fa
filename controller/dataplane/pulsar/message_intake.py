"""Takes messages from the library in the reader's own thread, and calls back when messages arrive.

A listener would cost seven times as much per message, because the library's thread calls Python for each, and
both threads need the interpreter. A reader with a listener also keeps six descriptors and a thread forever
after it and its client are closed (library 3.13). Here the library's thread makes one call for the first
message that arrives while there is none; further messages are taken without waiting. The calls are those of
the library below its Python classes, which have no callback.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import pulsar

_RETURNED_WITHIN_SECONDS = 1.0
"""Longest wait for the library to return a pending call, which usually takes a millisecond."""


class Intake:
    """The messages that have arrived for one consumer or reader. `take` is for one thread."""

    def __init__(self, opened: pulsar.Consumer | pulsar.Reader, on_arrival: Callable[[], None]) -> None:
        """Create the intake of the consumer or reader `opened`. `on_arrival` is called from the library's thread,
        or from `take` and `begin`, when a message arrives after there was none, and must raise nothing. Call
        `begin` before `take`.
        """
        self._receive: Callable[[int], Any]
        self._receive_async: Callable[[Callable[[pulsar.Result, Any], None]], None]
        if isinstance(opened, pulsar.Reader):
            self._receive, self._receive_async = opened._reader.read_next, opened._reader.read_next_async
        else:
            self._receive, self._receive_async = opened._consumer.receive, opened._consumer.receive_async
        self._on_arrival = on_arrival
        self._first: deque[Any] = deque()
        self._is_awaited = False
        self._is_returned = threading.Event()

    def take(self, limit: int) -> list[Any]:
        """Return at most `limit` messages in the order of their arrival, as objects of the library. With a `limit`
        below 1, one message may be returned nevertheless: the one for which `on_arrival` was called.

        If there are fewer than `limit`, `on_arrival` is called for the next message. Empty, without a call of
        the library, while that message is awaited.
        """
        if self._is_awaited:
            return []
        receive = self._receive
        messages = [self._first.popleft()] if self._first else []
        try:
            while len(messages) < limit:
                messages.append(receive(0))
        except pulsar.PulsarException:  # no message is left at present, or the reader is closed
            self.begin()
        return messages

    def begin(self) -> None:
        """Request a call of `on_arrival` for the next arrival. `take` returns the message that arrives first."""
        self._is_awaited = True
        self._receive_async(self._arrived)

    def close(self) -> None:
        """Wait up to `_RETURNED_WITHIN_SECONDS` for the pending call, between the closing of the consumer or
        reader and that of its client. Take no more messages afterwards.

        The library returns the call that waits for a message in a separate thread. If the client is closed
        before that, on a busy machine, the library keeps the thread and six descriptors forever (library
        3.13). They are also kept as long as any object of the consumer is, so this method drops all
        references.
        """
        if self._is_awaited:
            self._is_returned.wait(_RETURNED_WITHIN_SECONDS)
        self._receive, self._receive_async = _receive_nothing, _await_nothing

    def _arrived(self, result: pulsar.Result, message: Any) -> None:
        """Keep the awaited message and call `on_arrival`. The library calls this in its own thread, or within
        `begin`; with another result than Ok if the consumer or reader was closed, and then only `close` is
        notified.
        """
        if result != pulsar.Result.Ok:  # the reader was closed; the closing thread reports it
            self._is_returned.set()
            return
        self._first.append(message)
        self._is_awaited = False
        self._on_arrival()


def _receive_nothing(_timeout_ms: int) -> Any:
    raise pulsar.AlreadyClosed


def _await_nothing(callback: Callable[[pulsar.Result, Any], None]) -> None:
    callback(pulsar.Result.AlreadyClosed, None)
