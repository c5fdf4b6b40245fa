"""Handling of SIGTERM and SIGINT for commands that run until they are stopped."""

from __future__ import annotations

import signal
from collections.abc import Callable


def on_stop_signals(stop: Callable[[], None]) -> None:
    """Make SIGTERM and SIGINT call `stop` instead of ending the process at once; the command finishes its current step and exits. Only for
    the main thread.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _signal, _frame: stop())
