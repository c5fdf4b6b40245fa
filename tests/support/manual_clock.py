"""A clock whose monotonic time changes only when a test sets or reads it."""

from __future__ import annotations

from controller.clock import SystemClock


class ManualClock(SystemClock):
    """A system clock whose monotonic time is `seconds`, after `step` seconds were added for each reading."""

    def __init__(self, seconds: float = 1_000.0, step: float = 0.0) -> None:
        self.seconds, self.step = seconds, step

    def monotonic_seconds(self) -> float:
        """Return `seconds`."""
        self.seconds += self.step
        return self.seconds
