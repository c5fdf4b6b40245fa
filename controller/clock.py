"""Clocks, injected wherever time decides something, so that tests need not wait.

Decisions are made at the database's time (the stores ask it); this clock serves what has no database at hand:
collectors' ticks, back-off, log lines.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


def to_datetime(instant_ms: int) -> datetime:
    """The aware UTC datetime of an instant in milliseconds since the Unix epoch."""
    return datetime.fromtimestamp(instant_ms / 1000, tz=UTC)


def to_ms(instant: datetime) -> int:
    """Milliseconds since the Unix epoch of an aware datetime, rounded down."""
    if instant.tzinfo is None:
        raise ValueError(f"naive datetime {instant.isoformat()}: instants at the edges carry their time zone")
    return int(instant.timestamp() * 1000)


_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_seconds() -> float:
    """Time that goes on while the machine sleeps, too."""
    return time.clock_gettime(_BOOT_CLOCK)


class Clock(Protocol):
    """Where an instant and a monotonic duration come from."""

    def now_ms(self) -> int:
        """Wall-clock instant, milliseconds since the Unix epoch."""

    def monotonic_seconds(self) -> float:
        """Monotonic seconds; only differences mean something."""


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        """Wall-clock instant, milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000

    def monotonic_seconds(self) -> float:
        """Monotonic seconds; only differences mean something."""
        return time.monotonic()


class SteadyClock(SystemClock):
    """The wall clock as it stood at the beginning of this object. From there it goes on evenly and is never set."""

    def __init__(self) -> None:
        self._began_seconds = time.time() - boot_seconds()

    def now_ms(self) -> int:
        """Instant in milliseconds since the Unix epoch, wrong by as much as the wall clock was at the beginning."""
        return int((self._began_seconds + boot_seconds()) * 1000)


STEADY_CLOCK = SteadyClock()
"""By this clock the process stamps what it reads, so that the time between two readings is right."""
