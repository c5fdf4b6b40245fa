"""Maintains a consumer in a background thread while its application processes messages.

One thread at a time may use the consumer's state: the thread that holds `turn`. A call of the application
holds `turn` from its start to its end. Between calls this thread may hold `turn`, for work that cannot wait
for the next call. The thread never delivers messages.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable

_LONGEST_REST_SECONDS = 60.0
_POLL_SECONDS = 0.1
_log = logging.getLogger(__name__)


class MaintenanceThread:
    """The background thread of one consumer, running from `start` to `stop`. Any thread may call `notify`."""

    def __init__(self, maintain: Callable[[], float]) -> None:
        """Create the thread without starting it. `maintain` is called in the thread, which holds `turn`
        meanwhile; it does the due work, and returns the seconds until the next work is due, infinity for
        none. After each call the thread waits for `notify`, for these seconds, or for a minute, whichever is
        shortest; after `start`, for `notify` or a minute.

        An Exception of `maintain` is logged, and counts as a return of infinity.
        """
        self._maintain = maintain
        self.turn = threading.RLock()
        """The lock that a thread holds while it uses the consumer's state."""
        self._has_signal, self._is_stopping = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="cleave-maintenance", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def notify(self) -> None:
        """Signal that there may be work."""
        self._has_signal.set()

    def stop(self) -> None:
        """End the thread, and return when a call of `maintain` that is in progress has ended. Nothing is called
        afterwards. Idempotent. `stop` may be called before `start`, and by a thread that holds `turn`, but not by
        `maintain`.
        """
        self._is_stopping = True
        self._has_signal.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        """Call `maintain` under `turn` at each notification, when work is due, and at least once a minute,
        until the thread is to stop. An Exception is logged; the next call then waits for a notification, or a
        minute.
        """
        rest_seconds = math.inf
        while not self._is_stopping:
            self._has_signal.wait(min(rest_seconds, _LONGEST_REST_SECONDS))
            self._has_signal.clear()
            if not self._acquire_turn():
                return
            try:
                rest_seconds = self._maintain()
            except Exception:  # noqa: BLE001 - the application's next call repeats the work and raises the error
                _log.exception("background maintenance failed; the next call of the application retries it")
                rest_seconds = math.inf
            finally:
                self.turn.release()

    def _acquire_turn(self) -> bool:
        """Wait for `turn`, acquire `turn`, and return True. Return False, without `turn`, once the thread is
        to stop.

        `stop` may be called while another thread holds `turn`, because the handler of a signal may close the
        consumer in the middle of a call.
        """
        while not self.turn.acquire(timeout=_POLL_SECONDS):
            if self._is_stopping:
                return False
        if self._is_stopping:
            self.turn.release()
            return False
        return True
