"""How long a consumer may be silent or away, and how long it may keep a bucket that others wait for."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ConsumerTiming:
    """As the settings say.

    `grace_seconds`: a consumer that lost its connection, or is silent, may come back within this time. `release_seconds`: one that does not let go of a
    bucket for so long loses it; infinite where it is waited for. `gap_seconds`: a bucket that its owner has not let go of for so long, or
    whose owner has been away for so long, is an alarm.
    """

    grace_seconds: float
    release_seconds: float = math.inf
    gap_seconds: float = 20.0

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
