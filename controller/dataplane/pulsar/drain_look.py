"""Asking a broker whether all of a terminated topic is acknowledged: no more often than it can have become so.

A reader of a sealed segment whose hands are empty for a moment cannot tell that from the end. With few messages waiting at a
reader that happens after nearly each of them, and to ask each time, or to wait until its own acknowledgements have arrived, would
take longer than all the reading.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from controller.dataplane.pulsar.admin import Deadline
from controller.dataplane.pulsar.cursors import Cursors

ACKNOWLEDGED_WITHIN_SECONDS = 0.5
"""The library sends acknowledgements every 100 ms. For this long their arrival is waited for."""
ASK_AGAIN_SECONDS = 0.1
_POLL_SECONDS = 0.02


class DrainLook:
    """For one reader, in its thread; `is_due` may be asked in any."""

    def __init__(self, cursors: Cursors, backing_topic: str, subscription: str) -> None:
        self._cursors, self._backing_topic, self._subscription = cursors, backing_topic, subscription
        self._on_their_way: deque[tuple[float, int]] = deque()
        self._left = self._since = 0
        """Entries left when that was asked last, and messages acknowledged here since."""
        self._ask_at = 0.0
        self._is_put_off = self._is_terminated = False

    def acknowledged(self, messages: int) -> None:
        """So many were, a moment ago."""
        self._since += messages
        self._on_their_way.append((time.monotonic() + ACKNOWLEDGED_WITHIN_SECONDS, messages))

    @property
    def is_due(self) -> bool:
        """Whether an asking that was put off is worth it now; said once."""
        is_due = self._is_put_off and time.monotonic() >= self._ask_at
        if is_due:
            self._is_put_off = False
        return is_due

    def is_drained(self, deadline: Deadline, *, is_idle: Callable[[], bool]) -> bool:
        """Whether the topic is terminated and acknowledged to its end. `is_idle`: nothing is in hand here.

        It waits for this reader's own acknowledgements where they may be all that is missing. A no may be a little old, and then
        `is_due` tells when to ask again. Raises as `Cursors.left`.
        """
        if time.monotonic() < self._ask_at and self._since < self._left:
            self._is_put_off = True
            return False
        self._is_put_off = False
        patience = threading.Event()
        while True:
            self._since = 0
            left = self._cursors.left(
                self._backing_topic, self._subscription, deadline, is_terminated=self._is_terminated
            )
            if left == 0:
                return True
            self._is_terminated = self._is_terminated or left is not None
            if left is None or not is_idle() or left > self._still_on_their_way():
                self._left, self._ask_at = left or 0, time.monotonic() + ASK_AGAIN_SECONDS
                return False
            patience.wait(_POLL_SECONDS)

    def _still_on_their_way(self) -> int:
        """Messages whose acknowledgements may not have arrived, and so entries at most."""
        now = time.monotonic()
        while self._on_their_way and self._on_their_way[0][0] <= now:
            self._on_their_way.popleft()
        return sum(messages for _, messages in self._on_their_way)
