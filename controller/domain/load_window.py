"""The window over which an aggregation computes rates, and the time before it in which intervals may begin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from controller.domain.errors import InvalidInput
from controller.domain.policy import MAX_SECONDS

DEFAULT_WINDOW_MS = 60_000
"""Default length of the window over which rates are computed, in milliseconds."""

SHORTEST_LOOKBACK_MS = 60_000
"""Milliseconds for which a reporter may pause before its series restarts, however short the window."""


@dataclass(frozen=True, slots=True)
class LoadWindow:
    """The window `(end_ms - length_ms, end_ms]`, milliseconds since the Unix epoch. Raises InvalidInput at
    construction for a length of 0 or less, and for a negative `lookback_ms`.

    An interval between two samples may begin before the window: samples are read from `lookback_ms` before its start.
    The series of a reporter that paused for longer restarts with a base line.
    """

    end_ms: int
    length_ms: int = DEFAULT_WINDOW_MS
    lookback_ms: int = DEFAULT_WINDOW_MS

    def __post_init__(self) -> None:
        if self.length_ms <= 0 or self.lookback_ms < 0:
            raise InvalidInput(
                f"a window of {self.length_ms} ms with {self.lookback_ms} ms before it is not possible; give a window longer "
                "than 0 and a look back that is not negative"
            )

    @classmethod
    def ending_at(cls, end_ms: int, length_seconds: float) -> Self:
        """Return a window of `length_seconds`, with a look back of the same length or of `SHORTEST_LOOKBACK_MS`,
        whichever is longer. Raises InvalidInput unless the length is at most `MAX_SECONDS` and, rounded to
        milliseconds, above 0.
        """
        if not 0 < length_seconds <= MAX_SECONDS:
            raise InvalidInput(
                f"a window of {length_seconds} s is not possible; give more than 0 and at most {MAX_SECONDS}"
            )
        length_ms = round(length_seconds * 1000)
        return cls(end_ms, length_ms, max(length_ms, SHORTEST_LOOKBACK_MS))

    @property
    def start_ms(self) -> int:
        """The start of the window, which is not part of the window; milliseconds since the Unix epoch."""
        return self.end_ms - self.length_ms

    @property
    def read_from_ms(self) -> int:
        """The instant up to and including which samples are not read."""
        return self.start_ms - self.lookback_ms
