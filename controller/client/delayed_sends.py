"""Sends a producer's messages that have waited for the batch delay although their batch is not full."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from functools import partial

from controller.domain.errors import InvalidInput

RETRY_SECONDS = 0.1
"""Time between two attempts of a producer with a batch delay to send overdue messages, or to read an awaited
layout.
"""
SHORTEST_RETRY_SECONDS = 0.001
"""Shortest time until a producer looks again at a lane with a batch in flight, however short the batch delay."""


class DelayedSends:
    """A thread that sends the messages that have waited for the batch delay, from `start` until `close`."""

    def __init__(self, delay_seconds: float, send_due: Callable[[float], float | None]) -> None:
        """Create the thread without starting it.

        `send_due` is called in the thread with `delay_seconds`, and sends the messages that have waited for
        this time. It returns the `time.monotonic` second at which it is to be called again, or None to be
        called after the next `notify`, and must raise nothing. Raises InvalidInput unless `delay_seconds` is
        above 0 and finite.
        """
        if not 0 < delay_seconds < math.inf:
            raise InvalidInput(f"a batch delay of {delay_seconds} s; give more than 0, or None")
        self._send_due = partial(send_due, delay_seconds)
        self._closing, self._waits = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="cleave-sender", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def notify(self) -> None:
        """Note that a message waits, which wakes the thread."""
        self._waits.set()

    def close(self) -> None:
        """End the thread, and wait, without a limit, until the thread has ended. The thread must have been started. A
        call of `send_due` that is in progress, or begins at the same time, is awaited and may still send; the owner
        must prevent this if no further message may be sent. Idempotent.
        """
        self._closing.set()
        self._waits.set()
        self._thread.join()

    def _run(self) -> None:
        """After each notification call `send_due`, repeatedly at the times that it returns, until it returns
        None or the object is closed. Then wait for the next notification.
        """
        while True:
            self._waits.wait()
            # cleared before sending, so that a message that arrives meanwhile is sent or sets the event again
            self._waits.clear()
            if self._closing.is_set():
                return
            due = self._send_due()
            while due is not None and not self._closing.wait(max(0.0, due - time.monotonic())):
                due = self._send_due()
