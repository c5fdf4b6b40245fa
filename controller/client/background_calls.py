"""Calls workers in background threads. The end of the process does not wait for these threads, because a
stopped worker answers late or never.

The threads are for HTTP calls only. Calls into the library of a data plane run in threads that the process
waits for (`reader_threads`).
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress

Call = Callable[[], None]
_log = logging.getLogger(__name__)


class BackgroundCalls:
    """A first-in, first-out queue of calls and the background threads that make them. Safe to use from any
    thread.
    """

    def __init__(self, threads: int, name: str) -> None:
        """Create `threads` threads, which is the number of simultaneous calls. The threads start with the
        first call. `name` is the beginning of their names.
        """
        self._lock = threading.Lock()
        self._waiting: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._unstarted = [
            threading.Thread(target=self._run, name=f"{name}-{i}", daemon=True) for i in range(threads)
        ]
        self._threads: list[threading.Thread] = []
        """Threads that were started."""
        self._is_closed = self._is_over = False

    def submit(self, call: Call) -> bool:
        """Queue the call, and return True. An exception of the call is logged.

        Return False, and drop the call, after `close`, and while no thread of this object can be started. The first
        call starts the threads. A thread that cannot be started is tried again with the next call.
        """
        with self._lock:
            if not self._is_closed:
                self._start_threads()
            if self._is_closed or not self._threads:
                return False
            self._waiting.put(call)
            return True

    def _start_threads(self) -> None:
        """Start the threads that were not started, until the process can start no other. Call it with the lock."""
        with suppress(RuntimeError):
            while self._unstarted:
                self._unstarted[-1].start()
                self._threads.append(self._unstarted.pop())

    def close(self, wait_seconds: float = 0.0) -> None:
        """Accept no further calls: `submit` returns False from now on. Idempotent. Must not be called by a background
        thread of this object.

        Wait until all submitted calls have ended, at most for `wait_seconds`. Calls that have not begun by then are
        dropped, and a call in progress continues without being awaited. With 0, the method returns at once, and all
        calls that have not begun are dropped.
        """
        until = time.monotonic() + wait_seconds
        with self._lock:
            self._is_closed = True
            self._is_over = self._is_over or not wait_seconds
            for _ in self._threads:
                self._waiting.put(None)
        if wait_seconds:
            for thread in self._threads:
                thread.join(max(0.0, until - time.monotonic()))
        self._is_over = True

    def _run(self) -> None:
        """Make the queued calls, oldest first, until `close` has ended the queue. Log the exception of a
        call.
        """
        while (call := self._waiting.get()) is not None and not self._is_over:
            try:
                call()
            except Exception:  # noqa: BLE001 - the thread would end, and later calls would wait for ever
                _log.exception("background call failed")
