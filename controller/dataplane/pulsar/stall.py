"""Noticing that a broker has stopped delivering to one reader though messages wait for it.

A broker gives a consumer as many messages as it was permitted. Permits of what is lost on the way, or dropped as
unreadable, never come back, and then nothing comes any more (apache/pulsar#26336). Only a new consumer gets new ones.
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
"""A reader with empty hands that has heard nothing for so long looks at the broker's statistics."""
LOOK_SECONDS = 1.0
"""A look waits for the broker's answer no longer than this, since the reader's thread does."""
_AGAIN_SECONDS = 1.0
"""What looks like a stall counts when it still does after this time."""


class StallWatch:
    """For one reader, in its own thread; `heard` may be called from any."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._again_seconds = min(_AGAIN_SECONDS, seconds)
        self.heard()

    def heard(self) -> None:
        """A message came, or one was acknowledged."""
        self._suspected = False
        self._look_at = time.monotonic() + self._seconds

    @property
    def is_due(self) -> bool:
        """Whether it is time to look."""
        return time.monotonic() >= self._look_at

    def is_stalled(self, looks_stalled: Callable[[], bool]) -> bool:
        """Whether it looked so twice in a row with silence in between. Asks now and then only."""
        if not self.is_due:
            return False
        before, self._suspected = self._suspected, looks_stalled()
        self._look_at = time.monotonic() + (self._again_seconds if self._suspected else self._seconds)
        return before and self._suspected


class SubscriptionStall:
    """A `StallWatch` of a subscription's reader, by what the statistics say of the subscription."""

    def __init__(
        self, cursors: Cursors, backing_topic: str, subscription: str, mark: str, seconds: float
    ) -> None:
        self._cursors, self._backing_topic, self._subscription = cursors, backing_topic, subscription
        self._mark = mark
        self._watch = StallWatch(seconds)
        self.heard = self._watch.heard

    @property
    def is_due(self) -> bool:
        """Whether it is time to look."""
        return self._watch.is_due

    def is_stalled(self, held_back: int = 0) -> bool:
        """Whether the reader, whose hands are empty but for so many messages, is passed over. It is counted and logged then."""
        if not self._watch.is_stalled(lambda: self._looks_stalled(held_back)):
            return False
        tell_of_stall(self._backing_topic, subscription=self._subscription)
        return True

    def _looks_stalled(self, held_back: int) -> bool:
        """What cannot be known is no reason to end the reading."""
        try:
            found = self._cursors.attachments(self._backing_topic, self._subscription, Deadline(LOOK_SECONDS))
        except CleaveError:
            return False
        return looks_stalled(found, self._mark, held_back)


def tell_of_stall(backing_topic: str, **more: str) -> None:
    """Count it, and say so in the log."""
    client_metrics.STALLED_READERS.inc()
    log.warning("delivery stopped", backing_topic=backing_topic, **more)


def looks_stalled(found: Attachments, mark: str, held_back: int) -> bool:
    """Whether the reader with this mark, whose hands are empty but for `held_back` messages, is passed over.

    Either the broker counts messages as given to it that it does not have, or may give it none; or there is a backlog,
    every slot has a consumer, and nobody has anything to do.
    """
    if not found.backlog:
        return False
    mine = next((one for one in found.holders if one.reader == mark), None)
    if mine is None or mine.unacknowledged > held_back or mine.permits <= 0:
        return True
    return found.covers_all and not any(one.unacknowledged for one in found.holders)
