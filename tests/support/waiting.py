"""Waiting in tests: poll a condition until a deadline. Tests never sleep a fixed time, and never assert on durations."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")

_POLL_SECONDS = 0.02


def wait_until(predicate: Callable[[], Found], *, timeout_seconds: float = 30.0, message: str = "") -> Found:
    """Return the first truthy result of `predicate`. Raises AssertionError with `message` if there is none in time."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        result = predicate()
        if result:
            return result
        if time.monotonic() > deadline:
            raise AssertionError(
                f"not within {timeout_seconds:g} s: {message or predicate}; last answer {result!r}"
            )
        time.sleep(_POLL_SECONDS)
