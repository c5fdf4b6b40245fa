"""The base of the four consumers: receive, pause and resume."""

from __future__ import annotations

import math
import threading
import time
from abc import abstractmethod
from typing import Any, Generic, TypeVar

from controller.client.arguments import checks_arguments
from controller.client.closing import ClosesOnExit
from controller.client.reader_set import LOOK_SECONDS, ReaderSet
from controller.client.retry import Outage
from controller.domain.errors import CleaveError, Retryable
from controller.forks import OneProcess

Item = TypeVar("Item")


@checks_arguments
class PollingConsumer(OneProcess, ClosesOnExit, Generic[Item]):
    """A consumer that polls logs, and waits for a signal between two polls. For the consumer's thread; any thread may
    call `pause` and `resume`, and set `_wakeup`.
    """

    _readers: ReaderSet[Any]

    def __init__(self, patience_seconds: float, *tolerated: type[CleaveError]) -> None:
        """Tolerate errors of the types `tolerated` in polls for up to `patience_seconds`.

        `receive` raises any other error at once.
        """
        self._wakeup, self._is_paused = threading.Event(), False
        self._tolerated, self._outage = tolerated, Outage(patience_seconds)

    def receive(self, timeout_seconds: float) -> Item | None:
        """Return the next item, waiting up to `timeout_seconds`. Return None if there is none. The logs are polled at
        least once, even without time, and at least every LOOK_SECONDS.

        An error of a type that the constructor names is tolerated: the call polls again, or returns None after the
        timeout. Such an error is raised once polls have failed for longer than `patience_seconds`, counted over several
        calls, without a poll that succeeded. Any other error of a poll is raised at once, such as Terminal for a log
        that can never be read, and so is an error of `_before_poll`, such as InvalidInput after `close`.
        """
        deadline = time.monotonic() + timeout_seconds
        while True:
            # cleared before the poll, so that a signal during the poll causes another poll
            self._wakeup.clear()
            self._before_poll()
            try:
                item = self._poll_or_raise()
                self._outage.end()
                if item is not None:
                    return item
                wait_seconds = self._due_at() - time.monotonic()
            except self._tolerated as error:
                self._outage.raise_if_expired(error)
                wait_seconds = error.delay_seconds if isinstance(error, Retryable) else LOOK_SECONDS
            remaining_seconds = deadline - time.monotonic()
            if remaining_seconds <= 0:
                return None
            self._wakeup.wait(max(0.0, min(remaining_seconds, wait_seconds, LOOK_SECONDS)))

    def pause(self) -> None:
        """Deliver no messages until `resume`, and keep what is assigned to this consumer, unless it is assigned to another
        one. Continue to call `receive`, which returns None, or raises the error of a consumer that can never continue.
        `receive` raises no error of a log meanwhile, and a call of `receive` makes `patience_seconds` start again. For
        any thread.
        """
        self._is_paused = True
        self._wakeup.set()

    def resume(self) -> None:
        """Deliver messages again. For any thread."""
        self._is_paused = False
        self._wakeup.set()

    @abstractmethod
    def close(self, timeout_seconds: float | None = None, *, leave: bool = True) -> None:
        """Stop reading within `timeout_seconds` (None: 30). If `leave` is False, the consumer keeps what is assigned to it
        for the grace period.
        """

    def _before_poll(self) -> None:
        """Called before each poll. Raises InvalidInput after `close`."""
        self._demand_open()

    @abstractmethod
    def _poll(self) -> Item | None:
        """Run one poll, and return the next item. Return None if there is none at present, and while paused."""

    def _poll_or_raise(self) -> Item | None:
        """Return the next item (`_poll`). If there is none and the consumer is not paused, raise the error of a log that
        was out of reach at the last attempt, or that can never be read (`ReaderSet.demand_reached`). Raises the errors
        of `_poll`.
        """
        item = self._poll()
        # a paused consumer reads no log, so an earlier error says nothing about the present
        if item is None and not self._is_paused:
            self._readers.demand_reached()
        return item

    def _due_at(self) -> float:
        """Return the time, in `time.monotonic` seconds, at which the next poll is worthwhile without a signal. Infinity
        while paused.
        """
        return math.inf if self._is_paused else self._readers.due_at
