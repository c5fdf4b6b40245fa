"""Time limits of consumers: how long a consumer may be silent or disconnected, and how long it may keep a
bucket that others wait for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ConsumerTiming:
    """Time limits, taken from the settings.

    `grace_seconds`: time within which a consumer that is disconnected or silent may return.
    `release_seconds`: time after which a consumer loses a bucket that it does not release; infinite if others
    wait without a limit. `gap_seconds`: time after which an alarm is raised for a bucket whose owner has not
    released it, or is disconnected. `deferral_seconds`: time for which moves of buckets may wait for a decision and
    its reshape, however many reshapes follow each other; 0 if no process evaluates topics.
    """

    grace_seconds: float
    release_seconds: float = math.inf
    gap_seconds: float = 20.0
    deferral_seconds: float = 1.0

    def end_of_grace(self, now: float) -> float:
        """Return the end of the grace period of a consumer that is disconnected at `now`."""
        return now + self.grace_seconds

    @property
    def silent_seconds(self) -> float:
        """Seconds of silence after which the leader disconnects a consumer, and after which a consumer that
        hears nothing stops reading.

        It is half of the grace period, so that a consumer that is cut off has stopped reading well before
        others begin.
        """
        return self.grace_seconds / 2

    @property
    def heartbeat_seconds(self) -> float:
        """Seconds between two heartbeats of a stream that carries nothing else. Several heartbeats fit into
        `silent_seconds`.
        """
        return self.grace_seconds / 12
