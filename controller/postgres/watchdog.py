"""Cuts a connection whose statement has run out of time.

Server-side timeouts end a slow statement, not the wait for a server that is frozen or cut off by the network:
libpq then waits for ever, since the kernel of a frozen server process still answers keepalives. One thread per process
shuts such a socket down, so that the caller gets its error on time. The thread decides nothing about what the error
means.
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
    """One wait for a server's answer. `cut` is True once the watchdog has shut the connection down."""

    __slots__ = ("connection", "cut", "deadline")

    def __init__(self, connection: HasDescriptor, deadline: float) -> None:
        self.connection = connection
        self.deadline = deadline
        self.cut = False


class Watchdog:
    """Watches any number of waits at once. Thread-safe; its thread starts with the first wait and is never ended."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget every wait. For a process that was forked: the thread and the waits are its parent's."""
        self._lock = (
            threading.Lock()
        )  # entered as it is: the condition's own methods cost a statement a microsecond
        self._changed = threading.Condition(self._lock)
        self._guards: set[Guard] = set()
        self._wakes_at = 0.0
        self._thread: threading.Thread | None = None

    def add(self, guard: Guard) -> None:
        """Shut the guard's connection down at its deadline (`time.monotonic` seconds) unless `discard` comes first."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="statement-watchdog", daemon=True)
                self._thread.start()
            self._guards.add(guard)
            if guard.deadline < self._wakes_at:
                self._changed.notify()

    def discard(self, guard: Guard) -> None:
        """End the watch. From here on the connection may serve another statement."""
        with self._lock:
            self._guards.discard(guard)

    def _run(self) -> None:
        with self._lock:
            while True:
                now = time.monotonic()
                for guard in [g for g in self._guards if g.deadline <= now]:
                    self._guards.discard(guard)
                    guard.cut = True
                    _shut_down(guard.connection)
                # Deadlines come in nearly rising order, so a new wait hardly ever has to wake this thread.
                self._wakes_at = min((now + 3600.0, *(g.deadline for g in self._guards)))
                self._changed.wait(max(0.0, self._wakes_at - time.monotonic()))


def _shut_down(connection: HasDescriptor) -> None:
    """Both directions at once: the thread that waits in libpq reads the end of the stream."""
    with contextlib.suppress(Exception):  # closed already: nothing waits on it
        twin = socket.socket(fileno=os.dup(connection.fileno()))
        try:
            twin.shutdown(socket.SHUT_RDWR)
        finally:
            twin.close()


WATCHDOG = Watchdog()
"""The watchdog of this process."""
os.register_at_fork(after_in_child=WATCHDOG.reset)
