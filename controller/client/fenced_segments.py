"""Tracks the segments of a topic whose log refuses messages because the log is terminated or missing."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # this import loads the HTTP client
    from controller.client.broken_log_reports import SuspectReports


class FencedSegments:
    """The fenced segments of one producer. For use under the producer's lock."""

    def __init__(self, suspects: SuspectReports | None) -> None:
        """Create an empty set. `suspects` receives reports of segments that stay fenced; None if the layout
        source takes no reports.
        """
        self._suspects = suspects
        self._since: dict[int, float] = {}
        """`time.monotonic` seconds of the first refusal, by segment id."""
        self._missing: set[int] = set()

    def __contains__(self, segment_id: object) -> bool:
        return segment_id in self._since

    def add(self, segment_id: int, *, is_missing: bool) -> None:
        """Record that the log of the segment refused messages, because it is missing (`is_missing`) or terminated.
        The time of the first refusal is kept.
        """
        self._since.setdefault(segment_id, time.monotonic())
        (self._missing.add if is_missing else self._missing.discard)(segment_id)

    def note_stored(self, segment_id: int) -> None:
        """Record that the log has stored messages: a missing log was created again, so its segment is no
        longer fenced.
        """
        if segment_id in self._missing:
            self._missing.discard(segment_id)
            self._since.pop(segment_id, None)

    def retain(self, active: Collection[int]) -> None:
        """Forget segments that are no longer active."""
        self._since = {segment_id: at for segment_id, at in self._since.items() if segment_id in active}
        self._missing.intersection_update(active)

    def state_of(self, segment_id: int) -> str:
        """Return the state of the log of a fenced segment, for use in messages."""
        return "missing" if segment_id in self._missing else "terminated"

    def report(self, after_seconds: float) -> None:
        """Report to `suspects` each segment whose first refusal is at least `after_seconds` ago; `suspects`
        drops reports that follow too soon. Does nothing if the layout source takes no reports.
        """
        if self._suspects is None:
            return
        for segment_id, at in self._since.items():
            if time.monotonic() >= at + after_seconds:
                self._suspects.report(segment_id)

    def close(self) -> None:
        """Send no further reports. Idempotent."""
        if self._suspects is not None:
            self._suspects.close()
