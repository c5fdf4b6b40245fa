"""Notifies clients that watch layouts or topics: one listening connection and one reading thread, regardless
of the number of watchers.

A feed knows its watchers (`layout_feed`, `topic_feed`). This module waits for notifications and makes each
feed read and notify. A watcher is added before its subject is read, so that no change is missed. Everything
is read again after the listening connection was interrupted, and every `SWEEP_SECONDS`.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Protocol, TypeVar

from controller import telemetry
from controller.clock import Clock
from controller.postgres.listener import Listener
from controller.postgres.notification import Notification
from controller.repeating import Repeating

log = telemetry.get_logger(__name__)

SWEEP_SECONDS = 30.0
"""Seconds between two readings of everything; the longest delay that a lost notification causes."""
LONGEST_WAIT_SECONDS = 1.0
"""Longest wait of a round, and longest pause after a failed round."""
Pushed_contra = TypeVar("Pushed_contra", contravariant=True)


class Watcher(Protocol[Pushed_contra]):
    """Destination of pushed values. Called from the feeds' thread; never blocks."""

    def push(self, pushed: Pushed_contra) -> None:
        """Send the value. It supersedes a value that was not sent yet."""

    def end(self, reason: str) -> None:
        """Send the reason, and close."""


class Feed(Protocol):
    """Watched subjects and their watchers. Called from the feeds' thread."""

    @property
    def due_in_seconds(self) -> float:
        """Seconds until the feed has something to read: 0 at once, infinity for nothing."""

    def notice(self, notifications: Sequence[Notification], *, is_sweep: bool) -> None:
        """Note what must be read again; in a sweep, everything."""

    def notify(self) -> None:
        """Read the subjects that are due, and notify their watchers. Raises a Retryable error of a reading; the next
        call then reads the subjects that were due, or all subjects, again.
        """

    def end_all(self, reason: str) -> None:
        """End all watches with the reason."""


class Feeds:
    """A background service of the worker that waits for notifications, and makes each feed read what changed
    and notify its watchers.
    """

    def __init__(self, listener: Listener, feeds: Sequence[Feed], *, clock: Clock) -> None:
        self._listener, self._feeds, self._clock = listener, tuple(feeds), clock
        self._sweep_at = -math.inf
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Make `run` return after the current round."""
        self._stopping.set()
        self._listener.interrupt()

    def run(self) -> None:
        """Run rounds until `stop`; then end every watch with the reason `moved`, and close the listener. An error of
        a round is logged, not raised, and the round is repeated, for a Retryable error after its own delay, up to
        `LONGEST_WAIT_SECONDS`.
        """
        Repeating(
            self._round,
            self._stopping,
            log,
            "watchers not notified",
            retry_seconds=(0.0, LONGEST_WAIT_SECONDS),
            longest_pause_seconds=LONGEST_WAIT_SECONDS,
        ).run()
        for feed in self._feeds:
            feed.end_all("moved")
        self._listener.close()

    def _round(self) -> float:
        """Wait for notifications, then have each feed read what is due and notify its watchers. Return 0, because the
        next round begins at once. If a feed raises an error, the other feeds still notify their watchers; the error
        of the last feed that failed is raised at the end. If the wait raises an error, no feed is called.
        """
        self._wait()
        with ExitStack() as stack:
            for feed in reversed(self._feeds):
                stack.callback(feed.notify)
        return 0.0

    def _wait(self) -> None:
        """Wait until a notification arrives, a feed is due, or `LONGEST_WAIT_SECONDS` have passed. Then pass the
        notifications, possibly none, to each feed, which notes what it must read. In the first round, at least every
        `SWEEP_SECONDS`, and if notifications may have been lost, this is a sweep: each feed notes that everything
        must be read.
        """
        due_in_seconds = min(feed.due_in_seconds for feed in self._feeds)
        notifications = self._listener.wait(max(0.0, min(due_in_seconds, LONGEST_WAIT_SECONDS)))
        now = self._clock.monotonic_seconds()
        is_sweep = now >= self._sweep_at or any(notification.is_resync for notification in notifications)
        if is_sweep:
            self._sweep_at = now + SWEEP_SECONDS
        for feed in self._feeds:
            feed.notice(notifications, is_sweep=is_sweep)
