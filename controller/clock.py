"""Clocks, injected wherever a decision depends on time, so that tests need not wait.

Decisions use the database's time, which the stores read. This clock serves code without a database: collectors' ticks, back-off, log lines.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_datetime(instant_ms: int) -> datetime:
    """Return the aware UTC datetime of an instant in milliseconds since the Unix epoch."""
    return datetime.fromtimestamp(instant_ms / 1000, tz=UTC)


def to_ms(instant: datetime) -> int:
    """Return the milliseconds since the Unix epoch of an aware datetime, rounded down. Raises ValueError for a datetime without a time
    zone.
    """
    if instant.tzinfo is None:
        raise ValueError(f"naive datetime {instant.isoformat()}: instants at the edges carry their time zone")
    return (instant - _EPOCH) // timedelta(milliseconds=1)


_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_seconds() -> float:
    """Return seconds of a monotonic clock that, if the system has such a clock, also runs while the machine sleeps. Only differences are
    meaningful.
    """
    return time.clock_gettime(_BOOT_CLOCK)


class Clock(Protocol):
    """A source of wall-clock instants and monotonic durations."""

    def now_ms(self) -> int:
        """Wall-clock instant, milliseconds since the Unix epoch."""

    def monotonic_seconds(self) -> float:
        """Monotonic seconds; only differences are meaningful."""


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        """Wall-clock instant, milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000

    def monotonic_seconds(self) -> float:
        """Monotonic seconds; only differences are meaningful."""
        return time.monotonic()


class SteadyClock(SystemClock):
    """A clock that starts at the wall clock's time at construction and is never adjusted afterwards."""

    def __init__(self) -> None:
        self._began_seconds = time.time() - boot_seconds()

    def now_ms(self) -> int:
        """Instant in milliseconds since the Unix epoch; off by the wall clock's error at construction."""
        return int((self._began_seconds + boot_seconds()) * 1000)


STEADY_CLOCK = SteadyClock()
"""The clock of a process's samples; differences between two samples are exact."""
