"""The 16-bit hash ring and the inclusive ranges that segments own.

All other modules build on this value: layouts tile the ring with ranges, reshapes divide and join them. The ring does
not wrap, so the first and the last range are not neighbours. Rules and text form are those of PIP-468. Hashing of
keys is in `key_hash`; buckets inside a segment are in `entry_buckets`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from controller.domain.errors import InvalidInput, InvalidRange
from controller.domain.formatting import shown
from controller.domain.whole_numbers import MOST

RING_SIZE = 65536
MAX_HASH = RING_SIZE - 1


def hexadecimal(point: int) -> str:
    """Return a point of the ring as text with four hexadecimal digits, `0x8000`; also for a message about a number that
    is not on the ring. A number beyond 64 bits is written in decimal and shortened.
    """
    return f"{point:#06x}" if abs(point) <= MOST else shown(point)


_TEXT = re.compile(r"([0-9a-f]{4})-([0-9a-f]{4})")
_POINT = re.compile(r"-?(0[xX][0-9a-fA-F]+|0|[1-9][0-9]{0,18})")


def parse_hash(text: str) -> int:
    """Return the point of the ring, 0 to 65535, that the text names: in hexadecimal with the prefix 0x (`0x8000`), or
    in decimal without leading zeros (`32768`). Raises InvalidInput for a text of any other form, for a number outside
    the ring, and for a number with a minus sign, also `-0`.
    """
    if _POINT.fullmatch(text) is None:
        raise InvalidInput(f"{shown(text)} is not a hash: write decimal (32768) or hexadecimal (0x8000)")
    value = int(text, 0)
    if text.startswith("-") or value > MAX_HASH:
        raise InvalidInput(f"hash {shown(text)} is not on the ring: the ring goes from 0 to 65535 (0xffff)")
    return value


@dataclass(frozen=True, slots=True, order=True)
class HashRange:
    """Inclusive range `start..end`, `0 <= start <= end <= 65535`; ordered by start, then end.

    Raises InvalidRange at construction for other values.
    """

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end <= MAX_HASH:
            raise InvalidRange(
                f"hash range {shown(self.start)}..{shown(self.end)} is not on the ring; give 0 <= start <= end <= {MAX_HASH}"
            )

    @property
    def width(self) -> int:
        """Number of hashes covered, 1..65536."""
        return self.end - self.start + 1

    @property
    def midpoint(self) -> int:
        """First hash of the upper half. Raises InvalidRange for a range of width 1."""
        if self.start == self.end:
            raise InvalidRange(f"range {self} covers one hash and cannot be halved; leave it whole")
        return self.start + (self.end - self.start) // 2 + 1

    def halves(self) -> tuple[HashRange, HashRange]:
        """Return the low and the high half; for an odd width the low half has one hash more, as in Pulsar. Raises
        InvalidRange for a range of width 1.
        """
        return self.cut(self.midpoint)

    def cut(self, at: int) -> tuple[HashRange, HashRange]:
        """Return `(start..at-1, at..end)`: `at` is the first hash of the upper part, start < at <= end. Raises
        InvalidRange for other values.
        """
        if not self.start < at <= self.end:
            raise InvalidRange(
                f"cut point {hexadecimal(at)} does not divide range {self}; "
                f"give {self.start:#06x} < cut point <= {self.end:#06x}"
            )
        return HashRange(self.start, at - 1), HashRange(at, self.end)

    def cut_many(self, points: Sequence[int]) -> tuple[HashRange, ...]:
        """Return the parts between strictly ascending cut points, in ascending order. A cut point is the first hash of
        a part; without cut points the range stays whole. Raises InvalidRange for a cut point that is not above `start`
        and the cut point before it, or is above `end`.
        """
        parts: list[HashRange] = []
        remainder = self
        for at in points:
            low, remainder = remainder.cut(at)
            parts.append(low)
        return (*parts, remainder)

    def divide(self, parts: int) -> tuple[HashRange, ...]:
        """Return `parts` ranges of equal width; the last takes the remainder, as when Pulsar creates a topic.

        Raises InvalidRange unless 1 <= parts <= width.
        """
        if not 1 <= parts <= self.width:
            raise InvalidRange(
                f"range {self} cannot be divided into {shown(parts)} parts; give 1 to {self.width}"
            )
        step = self.width // parts
        return self.cut_many(range(self.start + step, self.start + step * parts, step))

    def equal_cuts(self, parts: int) -> tuple[int, ...]:
        """Return the cut points (the first hash of each part except the first) of `parts` ranges whose widths differ by
        at most one; empty for one part. 2 parts are the halves, 4 parts the halves of the halves. Raises InvalidRange
        unless 1 <= parts <= width.
        """
        if not 1 <= parts <= self.width:
            raise InvalidRange(
                f"range {self} cannot be cut into {shown(parts)} parts; give 1 to {self.width}"
            )
        return tuple(self.start - (-index * self.width // parts) for index in range(1, parts))

    def join(self, other: HashRange) -> HashRange:
        """Return the union with an adjacent range; symmetric. Raises InvalidRange if the ranges are not adjacent."""
        if not self.is_adjacent_to(other):
            raise InvalidRange(f"ranges {self} and {other} are not adjacent; join neighbours only")
        return HashRange(min(self.start, other.start), max(self.end, other.end))

    def is_adjacent_to(self, other: HashRange) -> bool:
        """Return True if one range ends exactly one below the other's start; overlapping ranges are not adjacent."""
        return self.end + 1 == other.start or other.end + 1 == self.start

    def contains(self, hash_value: int) -> bool:
        return self.start <= hash_value <= self.end

    def overlaps(self, other: HashRange) -> bool:
        return self.start <= other.end and other.start <= self.end

    def __str__(self) -> str:
        return f"{self.start:04x}-{self.end:04x}"

    @classmethod
    def parse(cls, text: str) -> HashRange:
        """Return the range that `str(range)` wrote: two four-digit lower-case hex numbers with a hyphen. Raises
        InvalidRange for another text, and for a start above the end.
        """
        match = _TEXT.fullmatch(text)
        if match is None:
            raise InvalidRange(f"{shown(text)} is not a hash range; write it as 0000-7fff, lower-case hex")
        return cls(int(match[1], 16), int(match[2], 16))


FULL_RANGE = HashRange(0, MAX_HASH)
