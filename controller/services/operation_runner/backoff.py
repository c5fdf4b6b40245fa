"""How long an operation is left alone after a failed step, and how often rows that somebody holds are tried again."""

from __future__ import annotations

from controller.domain.errors import CleaveError, DataPlaneTimeout, LostRace, Retryable

FIRST_DELAY_SECONDS = 0.1
LONGEST_DELAY_SECONDS = 5.0
"""Attempts back off by doubling up to here: past the fence a range has no writable log until the next one."""
LOST_RACES_IN_A_ROW = 8
"""So often a lost race is run again at once, with pauses that double; then it counts as a failed attempt."""
LONGEST_PAUSE_SECONDS = 0.25
LONGEST_DELAY_AFTER_RACES_SECONDS = 0.5
"""Nothing is broken then, and rows that somebody holds are free again at any moment."""
LONGEST_DELAY_OF_CLOSED_SECONDS = 0.5
"""Longest delay after a retryable error while ranges take no writes: they are writable soon after an outage ends."""


def delay_seconds(
    error: CleaveError, attempts: int, call_timeout_seconds: float, *, is_closed: bool = False
) -> float:
    """Until the next attempt: longer each time, and long at once where only a person can help.

    `is_closed`: ranges take no writes until the operation commits. After a call that timed out it is at least the call's time-out: the call may be under way still, and nobody else may
    call meanwhile.
    """
    backoff_seconds = FIRST_DELAY_SECONDS * float(2 ** min(attempts, 10))
    asked_seconds = error.delay_seconds if isinstance(error, Retryable) else LONGEST_DELAY_SECONDS
    longest_seconds = (
        LONGEST_DELAY_AFTER_RACES_SECONDS if isinstance(error, LostRace) else LONGEST_DELAY_SECONDS
    )
    if is_closed and asked_seconds < LONGEST_DELAY_SECONDS:
        asked_seconds, longest_seconds = 0.0, LONGEST_DELAY_OF_CLOSED_SECONDS
    delay = min(max(backoff_seconds, asked_seconds), longest_seconds)
    return max(delay, call_timeout_seconds) if isinstance(error, DataPlaneTimeout) else delay


def wait_seconds(attempts: int) -> float:
    """Before the next look at what an operation waits for: as a rule others are about to end it."""
    return min(FIRST_DELAY_SECONDS * float(2 ** min(attempts, 10)), LONGEST_DELAY_AFTER_RACES_SECONDS)


def pause_seconds(asked_seconds: float, lost_races: int) -> float:
    """Before the same step is tried again, after so many lost races in a row (from 1)."""
    return min(asked_seconds * float(2 ** (lost_races - 1)), LONGEST_PAUSE_SECONDS)
