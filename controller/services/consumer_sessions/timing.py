"""How long a consumer may be silent, and how long it may be away: all of it follows from one setting."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ConsumerTiming:
    """`grace_seconds` is the setting: a consumer that lost its connection may come back for so long."""

    grace_seconds: float

    @property
    def silent_seconds(self) -> float:
        """A consumer that was not heard for so long is disconnected, and one that has heard nothing stops.

        Half of the grace period, so that who is cut off has stopped reading well before others begin.
        """
        return self.grace_seconds / 2

    @property
    def heartbeat_seconds(self) -> float:
        """Time between two heartbeats of a stream in which nothing else is said: several in the longest silence."""
        return self.grace_seconds / 12
