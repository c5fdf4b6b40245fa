"""Waiting in tests: poll a condition until a deadline. Tests never sleep a fixed time, and never assert on durations."""

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
    """Return the first truthy result of `predicate`. Raises AssertionError with `message` if there is none in time.

    A callable `message` is called at the failure, and may describe the state that was reached.
    """
    deadline = time.monotonic() + timeout_seconds
    while True:
        result = predicate()
        if result:
            return result
        if time.monotonic() > deadline:
            failure = message() if callable(message) else message
            raise AssertionError(
                f"not within {timeout_seconds:g} s: {failure or predicate}; last answer {result!r}"
            )
        time.sleep(_POLL_SECONDS)
