"""Detects that a broker has stopped delivering to one reader although messages wait for it.

A broker delivers as many messages to a consumer as the consumer has permits. The permits of messages that are
lost on the way, or dropped as unreadable, never return, and delivery then stops (apache/pulsar#26336). Only
another consumer gets new permits.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from controller import client_metrics, telemetry
from controller.dataplane.pulsar.admin import Deadline
from controller.dataplane.pulsar.cursors import Attachments, Cursors
from controller.domain.errors import CleaveError

log = telemetry.get_logger(__name__)

STALL_SECONDS = 30.0
"""Time without messages after which an idle reader checks the broker's statistics."""
LOOK_SECONDS = 1.0
"""Longest wait for the response to a check, because the reader's thread waits for it."""
_AGAIN_SECONDS = 1.0
"""Time after which a suspected stall is checked again. Only a repeated suspicion counts."""


class StallWatch:
    """The stall detection of one reader: a check is due after `seconds` without activity. For the reader's
    thread; any thread may call `note_activity`.
    """

    def __init__(self, seconds: float, **log_fields: str) -> None:
        """Begin the time until the first check. `log_fields` name the reader in the log line of a stall."""
        self._seconds, self._log_fields = seconds, log_fields
        self._again_seconds = min(_AGAIN_SECONDS, seconds)
        self.note_activity()

    def note_activity(self) -> None:
        """Record that a message arrived or was acknowledged."""
        self._suspected = False
        self._check_at = time.monotonic() + self._seconds

    @property
    def is_due(self) -> bool:
        """True if it is time to check."""
        return time.monotonic() >= self._check_at

    def is_stalled(self, looks_stalled: Callable[[], bool]) -> bool:
        """If a check is due, call `looks_stalled`, which performs the check, and return True if this check and the
        previous one both found the reader stalled, without activity in between; the stall is then counted and logged.
        False otherwise, and without a check if none is due. A check that finds the reader stalled is soon repeated.
        Raises the errors of `looks_stalled`.
        """
        if not self.is_due:
            return False
        before, self._suspected = self._suspected, looks_stalled()
        self._check_at = time.monotonic() + (self._again_seconds if self._suspected else self._seconds)
        if not (before and self._suspected):
            return False
        client_metrics.STALLED_READERS.inc()
        log.warning("delivery stopped", **self._log_fields)
        return True


def subscription_stalls(
    cursors: Cursors, backing_topic: str, subscription: str, mark: str, held_back: int = 0
) -> bool:
    """Return True if the broker's statistics of the subscription show stalled delivery to the reader with this mark
    (`looks_stalled`). False if the statistics are unknown, which is no reason to end the reading: the request failed or
    took longer than `LOOK_SECONDS`.

    Call this only for a reader whose unacknowledged messages are at most the `held_back` messages that it
    received and does not deliver.
    """
    try:
        attached = cursors.attachments(backing_topic, subscription, Deadline(LOOK_SECONDS))
    except CleaveError:
        return False
    return looks_stalled(attached, mark, held_back)


def looks_stalled(attached: Attachments, mark: str, held_back: int) -> bool:
    """Return True if the statistics `attached` show that the broker has stopped delivering to the reader with this
    mark. The reader has no unacknowledged messages except `held_back` ones. Always False without a backlog.

    With a backlog, the reader is stalled if the statistics do not show the reader, count more than `held_back`
    messages as delivered to the reader, or allow no further delivery to the reader. The reader is also stalled if
    every slot has a consumer, and no consumer has unacknowledged messages.
    """
    if not attached.backlog:
        return False
    own = next((holder for holder in attached.holders if holder.reader == mark), None)
    if own is None or own.unacknowledged > held_back or own.permits <= 0:
        return True
    return attached.covers_all and not any(holder.unacknowledged for holder in attached.holders)
