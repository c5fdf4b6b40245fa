"""Trying again while the data plane or the layout's source is away, for a given time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import tenacity

from controller.domain.errors import DataPlaneUnavailable, StoreUnavailable

Result = TypeVar("Result")
_FIRST_SECONDS, _LONGEST_SECONDS = 0.05, 2.0


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
