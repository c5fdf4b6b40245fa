"""Waiting in tests: poll a condition until a deadline. Never sleep a fixed time, never assert on how long."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")

_POLL_SECONDS = 0.02


def wait_until(
    predicate: Callable[[], Found],
    *,
    timeout_seconds: float = 30.0,
    message: str | Callable[[], str] = "",
) -> Found:
    """The first truthy answer of ``predicate``; AssertionError with ``message`` when none comes in time.

    A callable ``message`` is called at the failure, and may describe the state that was reached.
    """
    deadline = time.monotonic() + timeout_seconds
    while True:
        found = predicate()
        if found:
            return found
        if time.monotonic() > deadline:
            told = message() if callable(message) else message
            raise AssertionError(
                f"not within {timeout_seconds:g} s: {told or predicate}; last answer {found!r}"
            )
        time.sleep(_POLL_SECONDS)
