"""Queries a broker whether a terminated topic is drained (all its messages are acknowledged), but no more often than the
answer can have changed. `Cursors.unread_entries` has the condition.

A reader of a sealed segment that has no messages at the moment cannot distinguish that from the end. If only
few messages arrive at a time, this happens after nearly each of them. Querying each time, or waiting until
the reader's acknowledgements have arrived, would take longer than all the reading.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from controller.dataplane.pulsar.admin import Deadline
from controller.dataplane.pulsar.cursors import Cursors

ACKNOWLEDGED_WITHIN_SECONDS = 0.5
"""Time in which acknowledgements are expected to arrive. The library sends them every 100 ms."""
ASK_AGAIN_SECONDS = 0.1
_POLL_SECONDS = 0.02


class DrainCheck:
    """The drain check of one reader. For the reader's thread; any thread may read `is_due`."""

    def __init__(self, cursors: Cursors, backing_topic: str, subscription: str) -> None:
        self._cursors, self._backing_topic, self._subscription = cursors, backing_topic, subscription
        self._unconfirmed: deque[tuple[float, int]] = deque()
        self._unread = self._acknowledged_since = 0
        """Number of entries left at the last query, and of messages acknowledged here since."""
        self._query_at = 0.0
        self._is_postponed = self._is_terminated = False

    def note_acknowledged(self, messages: int) -> None:
        """Record that `messages` messages were acknowledged a moment ago."""
        self._acknowledged_since += messages
        self._unconfirmed.append((time.monotonic() + ACKNOWLEDGED_WITHIN_SECONDS, messages))

    @property
    def is_due(self) -> bool:
        """True if `is_drained` postponed a query and its time has come, so that `is_drained` is worth a call.

        True only once: reading the property ends the postponement.
        """
        is_due = self._is_postponed and time.monotonic() >= self._query_at
        if is_due:
            self._is_postponed = False
        return is_due

    def is_drained(self, deadline: Deadline, *, is_idle: Callable[[], bool]) -> bool:
        """Return True if the topic is terminated and the subscription has acknowledged all its messages.

        After a query of a terminated topic that was not drained, further calls within `ASK_AGAIN_SECONDS` return
        False without a query, unless this reader has meanwhile acknowledged at least as many messages as entries were
        left. `is_due` shows when to call again.

        `is_idle` returns True if this reader has no messages to deliver and none that are unacknowledged. If the
        reader is idle and only acknowledgements in flight of this reader may be missing, the call repeats the query
        until they have arrived, waiting for each at most `ACKNOWLEDGED_WITHIN_SECONDS`. `deadline` limits the
        queries. Raises SegmentNotFound, SubscriptionNotFound, DataPlaneTimeout and the other errors of
        `Cursors.unread_entries`.
        """
        if time.monotonic() < self._query_at and self._acknowledged_since < self._unread:
            self._is_postponed = True
            return False
        self._is_postponed = False
        pause = threading.Event()
        while True:
            self._acknowledged_since = 0
            unread = self._cursors.unread_entries(
                self._backing_topic, self._subscription, deadline, is_terminated=self._is_terminated
            )
            if unread == 0:
                return True
            self._is_terminated = self._is_terminated or unread is not None
            if unread is None or not is_idle() or unread > self._unconfirmed_messages():
                self._unread, self._query_at = unread or 0, time.monotonic() + ASK_AGAIN_SECONDS
                return False
            pause.wait(_POLL_SECONDS)

    def _unconfirmed_messages(self) -> int:
        """Return the number of messages that `note_acknowledged` recorded in the last `ACKNOWLEDGED_WITHIN_SECONDS`,
        and drop older records. The acknowledgements of these messages may not have arrived at the broker. The
        messages are in at most as many entries.
        """
        now = time.monotonic()
        while self._unconfirmed and self._unconfirmed[0][0] <= now:
            self._unconfirmed.popleft()
        return sum(messages for _, messages in self._unconfirmed)
