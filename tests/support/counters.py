"""Rates from counters, for tests that need no reason for a missing rate."""

from __future__ import annotations

from collections.abc import Iterable

from controller.domain.counter_rates import CounterSample, NoRate, WindowLoad, judge_counters
from controller.domain.load_window import DEFAULT_WINDOW_MS


def rates_from_counters(
    samples: Iterable[CounterSample], window_end_ms: int, window_ms: int = DEFAULT_WINDOW_MS
) -> WindowLoad | None:
    """Return the rates of one segment over the window; None without a rate."""
    result = judge_counters(samples, window_end_ms, window_ms)
    return None if isinstance(result, NoRate) else result
