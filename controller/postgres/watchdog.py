"""Shuts down connections whose statements have exceeded their time limits.

Time-outs of the server end a slow statement, but not the wait for a frozen or disconnected server: libpq then waits without a limit,
because the kernel of a frozen server still answers keepalives. One thread per process shuts such a socket down, so that the caller
gets its error in time.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from typing import Protocol


class HasDescriptor(Protocol):
    """A connection with a socket."""

    def fileno(self) -> int:
        """The socket's descriptor."""


class Guard:
    """A wait for the answer of a server until `deadline`, in `time.monotonic` seconds. `cut` is True after the watchdog has shut
    the connection down.
    """

    __slots__ = ("connection", "cut", "deadline")

    def __init__(self, connection: HasDescriptor, deadline: float) -> None:
        self.connection = connection
        self.deadline = deadline
        self.cut = False


class Watchdog:
    """Watches any number of concurrent waits. Thread-safe. Its thread starts with the first wait and never ends."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Remove all waits, in a forked process: the thread and the waits belong to the parent process."""
        self._lock = (
            threading.Lock()
        )  # the lock is used directly, because the methods of the condition cost a microsecond per statement
        self._changed = threading.Condition(self._lock)
        self._guards: set[Guard] = set()
        self._wakes_at = 0.0
        self._thread: threading.Thread | None = None

    def add(self, guard: Guard) -> None:
        """Begin the watch: at its deadline the guard is marked as `cut` and its connection is shut down, unless `discard` comes
        first. The first call in a process starts the thread.
        """
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="statement-watchdog", daemon=True)
                self._thread.start()
            self._guards.add(guard)
            if guard.deadline < self._wakes_at:
                self._changed.notify()

    def discard(self, guard: Guard) -> None:
        """End the watch of the guard. Afterwards the connection may be used for another statement."""
        with self._lock:
            self._guards.discard(guard)

    def _run(self) -> None:
        """Shut down the connections of guards whose deadline has passed. Never returns."""
        with self._lock:
            while True:
                now = time.monotonic()
                for guard in [g for g in self._guards if g.deadline <= now]:
                    self._guards.discard(guard)
                    guard.cut = True
                    _shut_down(guard.connection)
                # Deadlines rise with the time of the wait in most cases, so an added wait rarely wakes this thread.
                self._wakes_at = min((now + 3600.0, *(g.deadline for g in self._guards)))
                self._changed.wait(max(0.0, self._wakes_at - time.monotonic()))


def _shut_down(connection: HasDescriptor) -> None:
    """Shut the socket down in both directions, so that the thread that waits in libpq reads the end of the stream."""
    with contextlib.suppress(Exception):  # a closed connection has no waiting thread
        duplicate = socket.socket(fileno=os.dup(connection.fileno()))
        try:
            duplicate.shutdown(socket.SHUT_RDWR)
        finally:
            duplicate.close()


WATCHDOG = Watchdog()
"""The watchdog of this process."""
os.register_at_fork(after_in_child=WATCHDOG.reset)
