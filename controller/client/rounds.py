"""How every consumer's `receive` goes round: look for something, and wait until something rings."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from controller.client.patience import Outage
from controller.domain.errors import CleaveError, Retryable

LOOK_SECONDS = 1.0
"""Logs are looked at this often even if nothing rang."""
WAITS_FOR_RECEIVE = "waits for the next `receive`"
"""Why nothing comes of what may have messages: whether it has any, only the next look tells."""
Found = TypeVar("Found")


class Rounds:
    """For the consumer's thread; `wakeup` may be set by any."""

    def __init__(self, wakeup: threading.Event, patience_seconds: float, *borne: type[CleaveError]) -> None:
        """Errors of the kinds `borne` are raised when they go on for longer than the patience, others at once."""
        self._wakeup, self._borne = wakeup, borne
        self._outage = Outage(patience_seconds)

    def receive(
        self,
        timeout_seconds: float,
        look: Callable[[], Found | None],
        due_at: Callable[[], float],
        before: Callable[[], None] = lambda: None,
    ) -> Found | None:
        """What `look` finds, waiting at most so long; None when there is nothing.

        `before` runs ahead of each look, and what it raises is not borne. `due_at` says when the next look is worth it though
        nothing rang, `time.monotonic` seconds.
        """
        deadline = time.monotonic() + timeout_seconds
        while True:
            self._wakeup.clear()  # before looking: what happens from here on rings again
            before()
            try:
                found = look()
                self._outage.over()
                if found is not None:
                    return found
                pause = due_at() - time.monotonic()
            except self._borne as error:
                self._outage.bear(error)
                pause = error.delay_seconds if isinstance(error, Retryable) else LOOK_SECONDS
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            self._wakeup.wait(max(0.0, min(left, pause, LOOK_SECONDS)))
