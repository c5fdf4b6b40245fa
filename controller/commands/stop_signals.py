"""SIGTERM and SIGINT for commands that run until they are told to leave."""

from __future__ import annotations

import signal
from collections.abc import Callable


def on_stop_signals(stop: Callable[[], None]) -> None:
    """SIGTERM and SIGINT finish the step in hand and leave."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _signal, _frame: stop())
