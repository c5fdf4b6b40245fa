"""Cuts a connection whose call has run out of time.

Server-side timeouts end a slow statement, not the wait for a server that is paused or cut off by the network:
libpq then waits for ever. One thread per pool shuts such a socket down, so that the caller gets its error on
time. It decides nothing about what the error means.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from typing import Protocol


class HasDescriptor(Protocol):
    """A connection with a socket."""

    def fileno(self) -> int:
        """The socket's descriptor."""


class Guard:
    """One call under watch; `cut` tells whether its time ran out."""

    __slots__ = ("connection", "cut", "deadline")

    def __init__(self, connection: HasDescriptor, deadline: float) -> None:
        self.connection = connection
        self.deadline = deadline
        self.cut = False


class Watchdog:
    """Watches any number of calls at once; the thread starts with the first and ends with `close`."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._guards: set[Guard] = set()
        self._wakes_at = 0.0
        self._thread: threading.Thread | None = None
        self._closed = False

    @contextlib.contextmanager
    def watch(self, connection: HasDescriptor, deadline: float) -> Iterator[Guard]:
        """Shut the connection's socket down at `deadline` (`time.monotonic` seconds) unless the block ended."""
        guard = Guard(connection, deadline)
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="call-watchdog", daemon=True)
                self._thread.start()
            self._guards.add(guard)
            if deadline < self._wakes_at:
                self._changed.notify()
        try:
            yield guard
        finally:
            with self._changed:  # from here on the connection may serve another call
                self._guards.discard(guard)

    def close(self) -> None:
        """End the thread; calls still under watch are watched no more."""
        with self._changed:
            self._closed = True
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        with self._changed:
            while not self._closed:
                now = time.monotonic()
                for guard in [g for g in self._guards if g.deadline <= now]:
                    self._guards.discard(guard)
                    guard.cut = True
                    _shut_down(guard.connection)
                # Deadlines come in rising order, so a new call hardly ever has to wake this thread.
                self._wakes_at = min((g.deadline for g in self._guards), default=now + 3600.0)
                self._changed.wait(max(0.0, self._wakes_at - time.monotonic()))


def _shut_down(connection: HasDescriptor) -> None:
    """Both directions at once: the thread that waits in libpq reads the end of the stream."""
    with contextlib.suppress(Exception):  # closed already: nobody waits on it
        twin = socket.socket(fileno=os.dup(connection.fileno()))
        try:
            twin.shutdown(socket.SHUT_RDWR)
        finally:
            twin.close()
