"""Number of polls of a consumer while it waits."""

from __future__ import annotations

from typing import Any

import pytest


def rounds_of(consumer: Any, timeout_seconds: float, monkeypatch: pytest.MonkeyPatch) -> int:
    """Call `receive`, which must return None, and return the number of its polls. The consumer stays patched until the end of the test."""
    polls = 0
    look = consumer._poll_or_raise

    def counted() -> object:
        nonlocal polls
        polls += 1
        return look()

    monkeypatch.setattr(consumer, "_poll_or_raise", counted)
    assert consumer.receive(timeout_seconds) is None
    return polls
