"""A metrics page of a real broker (Pulsar 4.2.4), as recorded and multiplied to any number of topics.

Recorded from a standalone broker with two segments that were written to and read, one of them by five
subscriptions, and with topics whose names have quotation marks, commas, braces, spaces, a backslash and a new line.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

RECORDED = Path(__file__).parent / "pages" / "pulsar-4.2.4.txt.gz"
TEMPLATE = b"orders-segment-8000-ffff-2"
"""The topic that is multiplied: one subscription with two consumers, one producer, 95 lines."""
_LINES_AT_ONCE = 20_000


def recorded() -> bytes:
    """Return the page as recorded."""
    return gzip.decompress(RECORDED.read_bytes())


def topic(number: int) -> str:
    """Return the name of one of the topics of a multiplied page."""
    return f"persistent://public/default/orders{number:06d}-segment-8000-ffff-2"


def multiplied(topics: int) -> Iterator[bytes]:
    """Yield the recorded page with `topics` topics in place of the template, family by family as a broker writes it."""
    names = [b"orders%06d-segment-8000-ffff-2" % number for number in range(topics)]
    for line in recorded().splitlines(keepends=True):
        if TEMPLATE not in line:
            yield line
            continue
        before, after = line.split(TEMPLATE)
        for begin in range(0, topics, _LINES_AT_ONCE):
            yield b"".join(before + name + after for name in names[begin : begin + _LINES_AT_ONCE])
