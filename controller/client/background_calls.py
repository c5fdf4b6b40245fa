"""Makes calls in background threads, of which there are two kinds.

Calls that only reach workers have threads that stay, and the end of the process does not wait for these threads, because a
stopped worker answers late or never. Calls into the library of a data plane have threads that the process waits for;
such a thread ends when no call waits, so that a process that closes nothing can end (`reader_threads`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

Call = Callable[[], None]
_log = logging.getLogger(__name__)


class BackgroundCalls:
    """A first-in, first-out queue of calls and the background threads that make them. Safe to use from any
    thread.
    """

    def __init__(self, threads: int, name: str, *, is_awaited: bool = False) -> None:
        """Create the queue without threads. `threads` is the number of simultaneous calls, and `name` the name of the
        threads. If `is_awaited`, the end of the process waits for the threads that other than daemon threads begin;
        the threads end when no call waits.
        """
        self._threads, self._name, self._is_awaited = threads, name, is_awaited
        self._change = threading.Condition()
        self._waiting: deque[Call] = deque()
        self._running: set[threading.Thread] = set()
        self.is_closed = False
        """True once `close` was called."""

    def submit(self, call: Call) -> bool:
        """Queue the call behind the calls that wait already, and return True; this method does not wait for its end. An
        exception of the call is logged.

        Return False, and drop the call, after `close`, and while no thread of this object can be started. A thread that
        cannot be started is tried again with the next call; a thread that runs makes the call later.
        """
        with self._change:
            if not self.is_closed and len(self._running) < self._threads:
                self._start_thread()
            if self.is_closed or not self._running:
                return False
            self._waiting.append(call)
            self._change.notify()
            return True

    def _start_thread(self) -> None:
        """Start a thread, if the process can start another one. Call it with the lock."""
        # Not even an awaited thread may keep a process that only daemon threads give further calls, so it is a daemon
        # if the thread that begins it is one.
        daemon = None if self._is_awaited else True
        thread = threading.Thread(target=self._run, name=self._name, daemon=daemon)
        with suppress(RuntimeError):
            thread.start()  # it waits for the lock before it looks for a call
            self._running.add(thread)

    def close(self, wait_seconds: float = 0.0) -> None:
        """Accept no further calls: `submit` returns False from now on. Idempotent. Must not be called by a background
        thread of this object.

        Wait until all submitted calls have ended, at most for `wait_seconds`; infinity is no limit. Calls that have not
        begun by then are dropped, and a call in progress continues without being awaited. With 0, the method returns at
        once, and the calls that have not begun are dropped.
        """
        until = time.monotonic() + wait_seconds
        with self._change:
            self.is_closed = True
            if not wait_seconds:
                self._waiting.clear()
            self._change.notify_all()
            running = [*self._running]
        for thread in running:
            thread.join(min(max(0.0, until - time.monotonic()), threading.TIMEOUT_MAX))
        with self._change:
            self._waiting.clear()

    def _run(self) -> None:
        """Make the queued calls, oldest first, until none waits and the thread is to end: after `close`, or at once if
        the end of the process waits for the thread. Log the exception of a call.
        """
        while True:
            with self._change:
                while not (self._waiting or self.is_closed or self._is_awaited):
                    self._change.wait()
                if not self._waiting:
                    self._running.discard(threading.current_thread())
                    return
                call = self._waiting.popleft()
            try:
                call()
            except Exception:  # noqa: BLE001 - the thread would end, and later calls would wait for ever
                _log.exception("background call failed")
