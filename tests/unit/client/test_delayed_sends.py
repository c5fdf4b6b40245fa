"""The thread that sends after the batch delay: what wakes it, and how it ends."""

from __future__ import annotations

import time

from controller.client.delayed_sends import DelayedSends
from tests.support.waiting import wait_until


def test_a_close_begins_no_further_call() -> None:
    """A call may read the layout, and retries that for long if no worker responds."""
    calls: list[float] = []
    for _ in range(20):  # the thread waits at most of the closes
        sends = DelayedSends(1.0, calls.append)
        sends.start()
        sends.close()

    assert calls == []


def test_a_notification_is_followed_by_calls_at_the_returned_times() -> None:
    calls: list[float] = []

    def send_due(delay_seconds: float) -> float | None:
        calls.append(delay_seconds)
        return time.monotonic() if len(calls) < 3 else None

    sends = DelayedSends(1.0, send_due)
    sends.start()
    sends.notify()
    wait_until(lambda: len(calls) == 3)
    sends.notify()
    wait_until(lambda: len(calls) == 4)
    sends.close()

    assert calls == [1.0] * 4
