"""Names of landed files, which show the ticks that a file covers.

`day=2026-11-20/20261120T101010000Z-broker-a.parquet` is one collector's tick;
`day=2026-11-20/20261120T100000000Z_20261120T105950000Z-compacted-1f0c9a2b.parquet` replaces many ticks. So listing
the days of a window finds its files, and a tick's cost does not grow with history.
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
_WINDOW = re.compile(r"day=[^/]+/window_end=(\d{8}T\d{9}Z)/[^/]+")
_DAY = re.compile(r"day=(\d{4}-\d{2}-\d{2})")


@dataclass(frozen=True, slots=True)
class LandedFile:
    """A file of samples. `path` is relative to the landing area. The first and the last tick are inclusive, in
    milliseconds since the Unix epoch.
    """

    path: str
    first_tick_ms: int
    last_tick_ms: int
    is_compacted: bool
    size_bytes: int

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    def covers(self, from_ms: int, to_ms: int) -> bool:
        """Return True if one of the file's ticks may lie in the inclusive span (milliseconds since the Unix epoch)."""
        return self.first_tick_ms <= to_ms and self.last_tick_ms >= from_ms


def tick_path(tick_ms: int, collector: str) -> str:
    """Return the path of a collector's tick in the area. Raises InvalidInput for a collector name that cannot be
    part of a file name, or is longer than 100 characters.
    """
    if not _COLLECTOR.fullmatch(collector):
        raise InvalidInput(
            f"collector name {collector!r} cannot be part of a file name; use up to 100 letters, digits, dots, dashes and underscores, "
            "beginning with a letter or digit"
        )
    return f"{day_directory(tick_ms)}/{format_tick(tick_ms)}-{collector}.parquet"


def compacted_path(first_tick_ms: int, last_tick_ms: int, digest: str) -> str:
    """Return the path of the compacted file that replaces the ticks from first to last, all of one day. `digest` is 8
    hexadecimal digits; `parse_path` knows no other name.
    """
    ticks = f"{format_tick(first_tick_ms)}_{format_tick(last_tick_ms)}"
    return f"{day_directory(first_tick_ms)}/{ticks}-compacted-{digest}.parquet"


def parse_path(path: str, size_bytes: int) -> LandedFile | None:
    """Return the file that the name describes; None for a name that Cleave does not use. `size_bytes` is stored in
    the result.
    """
    name = path.rpartition("/")[2]
    try:
        if match := _TICK.fullmatch(name):
            tick_ms = parse_tick(match[1])
            return LandedFile(path, tick_ms, tick_ms, False, size_bytes)
        if match := _COMPACTED.fullmatch(name):
            return LandedFile(path, parse_tick(match[1]), parse_tick(match[2]), True, size_bytes)
    except ValueError:  # the digits are not a date
        return None
    return None


def day_directory(instant_ms: int) -> str:
    """Return the directory of the instant's day (UTC)."""
    return f"day={to_datetime(instant_ms):%Y-%m-%d}"


def day_directories(from_ms: int, to_ms: int) -> list[str]:
    """Return the directories of every day (UTC) from one instant to the other, both included, in order. Empty if `to_ms`
    is on an earlier day than `from_ms`.
    """
    first, last = to_datetime(from_ms).date(), to_datetime(to_ms).date()
    return [f"day={first + timedelta(days=n)}" for n in range((last - first).days + 1)]


def day_of(directory: str) -> date | None:
    """Return the day of a directory; None for a name that Cleave does not use, such as one whose digits are not a date."""
    match = _DAY.fullmatch(directory)
    try:
        return date.fromisoformat(match[1]) if match else None
    except ValueError:  # the digits are not a date
        return None


def window_end_of(path: str) -> int | None:
    """Return the end of the window of a file of the history, in milliseconds since the Unix epoch; None for a path that Cleave does
    not use.
    """
    match = _WINDOW.fullmatch(path)
    try:
        return parse_tick(match[1]) if match else None
    except ValueError:  # the digits are not a date
        return None


def format_tick(instant_ms: int) -> str:
    """Return the instant as 20261120T101010000Z, which sorts by time and can be part of any file name."""
    return f"{to_datetime(instant_ms):%Y%m%dT%H%M%S}{instant_ms % 1000:03d}Z"


def parse_tick(text: str) -> int:
    """Return the instant that `format_tick` wrote, in milliseconds since the Unix epoch. Raises ValueError for other
    texts.
    """
    second = datetime.strptime(text[:15], "%Y%m%dT%H%M%S").replace(tzinfo=UTC)
    return int(second.timestamp()) * 1000 + int(text[15:18])
