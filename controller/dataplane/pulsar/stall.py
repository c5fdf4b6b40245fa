"""Noticing that a broker has stopped delivering to one reader though messages wait for it.

A broker gives a consumer as many messages as it was permitted. Permits of what is lost on the way, or dropped as
unreadable, never come back, and then nothing comes any more (apache/pulsar#26336). Only a new consumer gets new ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from controller.dataplane.pulsar.cursors import Attachments

STALL_SECONDS = 30.0
"""A reader with empty hands that has heard nothing for so long looks at the broker's statistics."""
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

    def is_stalled(self, looks_stalled: Callable[[], bool]) -> bool:
        """Whether it looked so twice in a row with silence in between. Asks now and then only."""
        if time.monotonic() < self._look_at:
            return False
        before, self._suspected = self._suspected, looks_stalled()
        self._look_at = time.monotonic() + (self._again_seconds if self._suspected else self._seconds)
        return before and self._suspected


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
