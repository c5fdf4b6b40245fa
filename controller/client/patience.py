"""Trying again: a call for a given time, or a thread's own work for as long as it goes on."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

import tenacity

from controller.client.arguments import checked
from controller.domain.errors import DataPlaneUnavailable, StoreUnavailable

Result = TypeVar("Result")
_FIRST_SECONDS, _LONGEST_SECONDS = 0.05, 2.0


@checked
def patiently(act: Callable[[], Result], *, seconds: float) -> Result:
    """The answer of `act`, tried again after DataPlaneUnavailable and StoreUnavailable; then the last of these.

    `act` must be safe to repeat. The time bounds when the last try begins, not when it ends.
    """
    return tenacity.Retrying(
        retry=tenacity.retry_if_exception_type((DataPlaneUnavailable, StoreUnavailable)),
        wait=tenacity.wait_random_exponential(multiplier=_FIRST_SECONDS, max=_LONGEST_SECONDS),
        stop=tenacity.stop_after_delay(seconds),
        reraise=True,
    )(act)


class Backoff:
    """How long to wait before the next try: twice as long each time, with jitter, so that many do not come back at once."""

    def __init__(self, first_seconds: float, longest_seconds: float) -> None:
        """The waits are between half and all of the delay, which begins at `first_seconds`."""
        self._first_seconds, self._longest_seconds = first_seconds, longest_seconds
        self._delay_seconds = first_seconds

    def next_seconds(self) -> float:
        """The wait before the next try."""
        delay_seconds = self._delay_seconds
        self._delay_seconds = min(2 * delay_seconds, self._longest_seconds)
        return random.uniform(0.5, 1.0) * delay_seconds  # noqa: S311 - no secret

    def reset(self) -> None:
        """It worked: the next wait is a short one."""
        self._delay_seconds = self._first_seconds


class Outage:
    """Since when nothing was reached, of a consumer that goes on looking; for its thread."""

    def __init__(self, patience_seconds: float) -> None:
        self._patience_seconds = patience_seconds
        self._since: float | None = None

    def over(self) -> None:
        """Something was reached, or nothing is out of reach."""
        self._since = None

    def bear(self, error: Exception) -> None:
        """Raises the error when nothing was reached for longer than the patience; the next outage has its full patience again."""
        self._since = self._since or time.monotonic()
        if time.monotonic() - self._since > self._patience_seconds:
            self._since = None
            raise error
