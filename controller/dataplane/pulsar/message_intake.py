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

from controller import telemetry

log = telemetry.get_logger(__name__)

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
        """Return messages that have arrived, at most `limit`, in the order of their arrival, as objects of the
        library. Does not wait. With a `limit` below 1, the result may still contain one message: the message for
        which `on_arrival` was called.

        If fewer than `limit` messages have arrived, `on_arrival` is called once, when the next message arrives. Until
        then, further calls return an empty list at once. The list is also empty after the consumer or reader was
        closed.
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
        """Wait, up to `_RETURNED_WITHIN_SECONDS`, until the library has returned the pending call, and drop all
        references to the consumer or reader. Call this after the consumer or reader is closed and before its client
        is closed. `take` returns no new message afterwards.

        If the client is closed before the library has returned the call, as on a busy machine, the library keeps a
        thread and six descriptors forever (library 3.13). The library also keeps them as long as an object of the
        consumer is referenced.
        """
        if self._is_awaited:
            self._is_returned.wait(_RETURNED_WITHIN_SECONDS)
        self._receive, self._receive_async = _receive_nothing, _await_nothing

    def _arrived(self, result: pulsar.Result, message: Any) -> None:
        """Keep the awaited message for `take`, and call `on_arrival`. The library calls this in its own thread, or
        within `begin`. With a `result` other than Ok, the consumer or reader was closed: no message is kept,
        `on_arrival` is not called, and only a waiting `close` is notified.
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


def call_on_arrival(on_arrival: Callable[[], None], backing_topic: str) -> None:
    """Call the callback of a reader's owner. An error is logged and must not reach the library's thread, because the
    process would end.
    """
    try:
        on_arrival()
    except Exception:
        log.exception("callback for arrivals failed", backing_topic=backing_topic)
