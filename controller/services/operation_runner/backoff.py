"""Computes retry delays after a failed step, and limits retries on locked rows."""

from __future__ import annotations

from controller.domain.errors import CleaveError, DataPlaneTimeout, LostRace, Retryable

FIRST_DELAY_SECONDS = 0.1
LONGEST_DELAY_SECONDS = 5.0
"""First and longest delay between attempts; each delay is twice the previous one. The bound is short because
past the fence a range has no writable log until the next attempt.
"""
LOST_RACES_IN_A_ROW = 8
"""Number of consecutive lost races after which the step counts as failed. Until then the step is repeated at
once, with pauses that double.
"""
LONGEST_PAUSE_SECONDS = 0.25
LONGEST_DELAY_AFTER_RACES_SECONDS = 0.5
"""Longest delay after lost races. Nothing is broken then, and locked rows may be released at any moment."""
LONGEST_DELAY_OF_CLOSED_SECONDS = 0.5
"""Longest delay after a retryable error while ranges accept no writes: the ranges become writable soon after
an outage ends.
"""


def delay_seconds(
    error: CleaveError, attempts: int, call_timeout_seconds: float, *, is_closed: bool = False
) -> float:
    """Return the seconds until the next attempt after this error. `attempts` is the number of failed attempts before
    this one. The delay begins with `FIRST_DELAY_SECONDS`, doubles with each of the `attempts`, and is at most
    `LONGEST_DELAY_SECONDS`, or after a LostRace `LONGEST_DELAY_AFTER_RACES_SECONDS`. The error's own `delay_seconds`,
    if the error is Retryable, is the minimum, up to the same limit. After a terminal error, which only a person can
    remove, the delay is `LONGEST_DELAY_SECONDS` from the first attempt on.

    `is_closed`: ranges accept no writes until the operation commits. The limit is then
    `LONGEST_DELAY_OF_CLOSED_SECONDS`, and the error's own delay does not count. This does not apply to a terminal
    error, nor to an error whose own delay is at least `LONGEST_DELAY_SECONDS`.

    After DataPlaneTimeout the delay is at least `call_timeout_seconds`, whatever the limit: the call may still be in
    progress, and no other call may be made until it ends.
    """
    backoff_seconds = FIRST_DELAY_SECONDS * float(2 ** min(attempts, 10))
    requested_seconds = error.delay_seconds if isinstance(error, Retryable) else LONGEST_DELAY_SECONDS
    longest_seconds = (
        LONGEST_DELAY_AFTER_RACES_SECONDS if isinstance(error, LostRace) else LONGEST_DELAY_SECONDS
    )
    if is_closed and requested_seconds < LONGEST_DELAY_SECONDS:
        requested_seconds, longest_seconds = 0.0, LONGEST_DELAY_OF_CLOSED_SECONDS
    delay = min(max(backoff_seconds, requested_seconds), longest_seconds)
    return max(delay, call_timeout_seconds) if isinstance(error, DataPlaneTimeout) else delay


def wait_seconds(age_seconds: float) -> float:
    """Return the seconds until the next check of a condition that other processes fulfil: half of the time since the
    operation's intent, but at least `FIRST_DELAY_SECONDS` and at most `LONGEST_DELAY_AFTER_RACES_SECONDS`.
    """
    return min(max(age_seconds / 2, FIRST_DELAY_SECONDS), LONGEST_DELAY_AFTER_RACES_SECONDS)


def pause_seconds(first_seconds: float, lost_races: int) -> float:
    """Return the seconds until the same step is tried again after `lost_races` consecutive lost races (at
    least 1): `first_seconds` after the first, and twice as long after each further one, up to
    `LONGEST_PAUSE_SECONDS`.
    """
    return min(first_seconds * float(2 ** (lost_races - 1)), LONGEST_PAUSE_SECONDS)
