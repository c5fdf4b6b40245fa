"""Tells clients that watch what has changed: one listening connection and one thread that reads, however many watch.

A feed knows who watches what (`layout_feed`, `topic_feed`); this waits for notifications and lets each feed read and tell. A
watcher is noted first and what it watches is read afterwards, so nothing falls between. All is read again when the listening
connection was away, and every `SWEEP_SECONDS`.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Protocol, TypeVar

from controller import telemetry
from controller.clock import Clock
from controller.postgres.listener import Listener
from controller.postgres.notification import Notification
from controller.repeating import Repeating

log = telemetry.get_logger(__name__)

SWEEP_SECONDS = 30.0
LONGEST_WAIT_SECONDS = 1.0
Pushed_contra = TypeVar("Pushed_contra", contravariant=True)


class Watcher(Protocol[Pushed_contra]):
    """Safe to call from the feeds' thread; never blocks."""

    def push(self, pushed: Pushed_contra) -> None:
        """Say this next, in place of what was not said yet."""

    def end(self, reason: str) -> None:
        """Say why, and close."""


class Feed(Protocol):
    """What is watched, and by whom; called by the feeds' thread."""

    @property
    def due_in_seconds(self) -> float:
        """When it has something to read: 0 at once, infinity for nothing."""

    def notice(self, notifications: Sequence[Notification], *, is_sweep: bool) -> None:
        """Note what is to be read again; in a sweep everything."""

    def tell(self) -> None:
        """Read what is due, and tell. Raises Retryable, with nothing forgotten that was to be read."""

    def end_all(self, reason: str) -> None:
        """Nobody is told anything more."""


class Feeds:
    """Runs beside the worker's loop."""

    def __init__(self, listener: Listener, feeds: Sequence[Feed], *, clock: Clock) -> None:
        self._listener, self._feeds, self._clock = listener, tuple(feeds), clock
        self._sweep_at = -math.inf
        self._stopping = threading.Event()

    def stop(self) -> None:
        """End every watch and leave."""
        self._stopping.set()
        self._listener.interrupt()

    def run(self) -> None:
        """Until `stop`."""
        retry_seconds = (0.0, LONGEST_WAIT_SECONDS)
        Repeating(
            self._round, self._stopping, log, "watchers not notified", retry_seconds=retry_seconds
        ).run()
        for feed in self._feeds:
            feed.end_all("moved")
        self._listener.close()

    def _round(self) -> float:
        """Wait, and tell; the next round comes at once."""
        self._wait()
        for feed in self._feeds:
            feed.tell()
        return 0.0

    def _wait(self) -> None:
        due = min(feed.due_in_seconds for feed in self._feeds)
        notifications = self._listener.wait(max(0.0, min(due, LONGEST_WAIT_SECONDS)))
        now = self._clock.monotonic_seconds()
        is_sweep = now >= self._sweep_at or any(one.is_resync for one in notifications)
        if is_sweep:
            self._sweep_at = now + SWEEP_SECONDS
        for feed in self._feeds:
            feed.notice(notifications, is_sweep=is_sweep)
