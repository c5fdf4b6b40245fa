"""Names of landed files: which ticks a file covers can be told from its name alone.

`day=2026-11-20/20261120T101010000Z-broker-a.parquet` is one collector's tick;
`day=2026-11-20/20261120T100000000Z_20261120T105950000Z-compacted-1f0c9a2b.parquet` stands for many of them. So a
window's files are found by listing its days, and a tick's cost does not grow with history.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from controller.clock import to_datetime
from controller.domain.errors import InvalidInput

_TICK = re.compile(r"(\d{8}T\d{9}Z)-([A-Za-z0-9][A-Za-z0-9._-]*)\.parquet")
_COMPACTED = re.compile(r"(\d{8}T\d{9}Z)_(\d{8}T\d{9}Z)-compacted-([0-9a-f]{8})\.parquet")
_COLLECTOR = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_DAY = re.compile(r"day=(\d{4}-\d{2}-\d{2})")


@dataclass(frozen=True, slots=True)
class LandedFile:
    """A file of samples; `path` is relative to the landing area, the ticks are inclusive."""

    path: str
    first_tick_ms: int
    last_tick_ms: int
    is_compacted: bool
    size_bytes: int

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    def covers(self, from_ms: int, to_ms: int) -> bool:
        """Whether one of its ticks may lie in the inclusive span."""
        return self.first_tick_ms <= to_ms and self.last_tick_ms >= from_ms


def tick_path(tick_ms: int, collector: str) -> str:
    """Where a collector's tick goes; InvalidInput for a collector that cannot stand in a file name."""
    if not _COLLECTOR.fullmatch(collector):
        raise InvalidInput(
            f"collector name {collector!r}: use up to 100 letters, digits, dots, dashes and underscores, "
            "beginning with a letter or digit"
        )
    return f"{day_directory(tick_ms)}/{format_tick(tick_ms)}-{collector}.parquet"


def compacted_path(first_tick_ms: int, last_tick_ms: int, digest: str) -> str:
    """Where the file goes that stands for the ticks from first to last, all of one day."""
    ticks = f"{format_tick(first_tick_ms)}_{format_tick(last_tick_ms)}"
    return f"{day_directory(first_tick_ms)}/{ticks}-compacted-{digest}.parquet"


def parse_path(path: str, size_bytes: int) -> LandedFile | None:
    """What the name says; None for a name that Cleave does not give."""
    name = path.rpartition("/")[2]
    try:
        if match := _TICK.fullmatch(name):
            tick_ms = parse_tick(match[1])
            return LandedFile(path, tick_ms, tick_ms, False, size_bytes)
        if match := _COMPACTED.fullmatch(name):
            return LandedFile(path, parse_tick(match[1]), parse_tick(match[2]), True, size_bytes)
    except ValueError:  # digits that are no date
        return None
    return None


def day_directory(instant_ms: int) -> str:
    """The directory of the instant's day (UTC)."""
    return f"day={to_datetime(instant_ms):%Y-%m-%d}"


def day_directories(from_ms: int, to_ms: int) -> list[str]:
    """The directories of every day between two instants, both included."""
    first, last = to_datetime(from_ms).date(), to_datetime(to_ms).date()
    return [f"day={first + timedelta(days=n)}" for n in range((last - first).days + 1)]


def day_of(directory: str) -> date | None:
    """The day a directory stands for, None where it stands for none."""
    match = _DAY.fullmatch(directory)
    return date.fromisoformat(match[1]) if match else None


def format_tick(instant_ms: int) -> str:
    """20261120T101010000Z: sorts by time, and stands in any file name."""
    return f"{to_datetime(instant_ms):%Y%m%dT%H%M%S}{instant_ms % 1000:03d}Z"


def parse_tick(text: str) -> int:
    """The instant that `format_tick` wrote; ValueError for anything else."""
    whole = datetime.strptime(text[:15], "%Y%m%dT%H%M%S").replace(tzinfo=UTC)
    return int(whole.timestamp()) * 1000 + int(text[15:18])
