"""A clock whose monotonic time changes only when a test sets it."""

from __future__ import annotations

from controller.clock import SystemClock


class ManualClock(SystemClock):
    """A system clock whose monotonic time is `seconds`."""

    def __init__(self, seconds: float = 1_000.0) -> None:
        self.seconds = seconds

    def monotonic_seconds(self) -> float:
        """Return `seconds`."""
        return self.seconds
