"""Retries failed work: one call for a given time, or the work of a consumer's thread until an outage lasts
too long.
"""

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
def retry_for(act: Callable[[], Result], *, seconds: float) -> Result:
    """Return the result of `act`. Retry it on DataPlaneUnavailable and StoreUnavailable for `seconds`, then
    raise the last error. Any other error is raised at once.

    `act` must be safe to repeat. No further attempt follows an attempt that ends after `seconds`. The last
    attempt may therefore begin up to `_LONGEST_SECONDS` after that time, and its end is not bounded.
    """
    return tenacity.Retrying(
        retry=tenacity.retry_if_exception_type((DataPlaneUnavailable, StoreUnavailable)),
        wait=tenacity.wait_random_exponential(multiplier=_FIRST_SECONDS, max=_LONGEST_SECONDS),
        stop=tenacity.stop_after_delay(seconds),
        reraise=True,
    )(act)


class Backoff:
    """The delay before the next attempt: doubles each time, with jitter, so that many clients do not
    reconnect at once.
    """

    def __init__(
        self, first_seconds: float = _FIRST_SECONDS, longest_seconds: float = _LONGEST_SECONDS
    ) -> None:
        """Begin with a delay of `first_seconds`. Each wait takes between half of the delay and the whole
        delay, at most `longest_seconds`.
        """
        self._first_seconds, self._longest_seconds = first_seconds, longest_seconds
        self._delay_seconds = first_seconds

    def next_seconds(self) -> float:
        """Return the seconds to wait before the next attempt: a random part, between half and all, of the present
        delay. Then double the delay, up to `longest_seconds`, for the next call. The method does not wait.
        """
        delay_seconds = self._delay_seconds
        self._delay_seconds = min(2 * delay_seconds, self._longest_seconds)
        return random.uniform(0.5, 1.0) * delay_seconds  # noqa: S311 - no secret

    def reset(self) -> None:
        """Reset the delay to `first_seconds`, after a success."""
        self._delay_seconds = self._first_seconds


class Outage:
    """The time since which a consumer that keeps trying has reached nothing. For the consumer's thread."""

    def __init__(self, patience_seconds: float) -> None:
        self._patience_seconds = patience_seconds
        self._since: float | None = None

    def end(self) -> None:
        """Note that the outage has ended: something was reached, or nothing is out of reach."""
        self._since = None

    def raise_if_expired(self, error: Exception) -> None:
        """Begin the outage with this error if there is none.

        Raise `error` if the outage has lasted longer than `patience_seconds`; then the next outage has the
        full time again. Otherwise return, and the caller retries. Only `end` ends an outage earlier, and
        errors of different kinds count as one outage.
        """
        self._since = self._since or time.monotonic()
        if time.monotonic() - self._since > self._patience_seconds:
            self._since = None
            raise error
