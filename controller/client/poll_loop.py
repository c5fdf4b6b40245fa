"""Runs the loop of each consumer's `receive`: poll, then wait for a signal."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from controller.client.reader_set import LOOK_SECONDS
from controller.client.retry import Outage
from controller.domain.errors import CleaveError, Retryable

Item = TypeVar("Item")


class PollLoop:
    """The poll loop of one consumer. For the consumer's thread; any thread may set `wakeup`."""

    def __init__(
        self, wakeup: threading.Event, patience_seconds: float, *tolerated: type[CleaveError]
    ) -> None:
        """Tolerate errors of the types `tolerated` for up to `patience_seconds`.

        `receive` raises any other error at once.
        """
        self._wakeup, self._borne = wakeup, tolerated
        self._outage = Outage(patience_seconds)

    def receive(
        self,
        timeout_seconds: float,
        poll: Callable[[], Item | None],
        due_at: Callable[[], float],
        before_poll: Callable[[], None] = lambda: None,
    ) -> Item | None:
        """Return the first item that `poll` returns within `timeout_seconds`. Return None if there is none.
        `poll` is called at least once, even without time.

        `before_poll` runs before each call of `poll`; an error of `before_poll` is raised at once. `due_at`
        returns the `time.monotonic` second at which the next poll is worthwhile without a signal; the loop
        polls at least every LOOK_SECONDS. An error of a type that the constructor names is tolerated: the
        loop polls again, or returns None after the timeout. Such an error is raised once polls have failed
        for longer than `patience_seconds`, counted over several calls, without a poll that succeeded. Any
        other error of `poll` is raised at once.
        """
        deadline = time.monotonic() + timeout_seconds
        while True:
            # cleared before the poll, so that a signal during the poll causes another poll
            self._wakeup.clear()
            before_poll()
            try:
                item = poll()
                self._outage.end()
                if item is not None:
                    return item
                wait_seconds = due_at() - time.monotonic()
            except self._borne as error:
                self._outage.raise_if_expired(error)
                wait_seconds = error.delay_seconds if isinstance(error, Retryable) else LOOK_SECONDS
            remaining_seconds = deadline - time.monotonic()
            if remaining_seconds <= 0:
                return None
            self._wakeup.wait(max(0.0, min(remaining_seconds, wait_seconds, LOOK_SECONDS)))
