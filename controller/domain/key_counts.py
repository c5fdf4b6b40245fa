"""Bounds of the counts of keys that producers hand in.

A count says where on the ring messages lie. It never says how much load there is: the broker's counters do. So these bounds only
have to keep a claim that cannot be true from the sums.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from controller.domain.errors import InvalidInput
from controller.domain.hash_range import RING_SIZE
from controller.domain.segment import Segment

KeyCount = tuple[int, int, int]
"""First hash, number of hashes, messages."""

MESSAGES_PER_SECOND = 2_000_000
"""Messages that one producer sends in a second, at most."""
LONGEST_SECONDS = 300
"""Time that one request covers, at most: older counts say little."""
PRODUCER_MESSAGES = MESSAGES_PER_SECOND * LONGEST_SECONDS
"""Messages that one producer counts in one request, and between two landings, at most."""
PRODUCERS = 4_096
"""Producers of one topic that are counted between two landings, at most."""
SEGMENT_MESSAGES = PRODUCERS * PRODUCER_MESSAGES
"""Messages of one segment in one row of what is landed, at most; millions of such rows add up to less than 2^63."""
REQUEST_HASHES = 4 * RING_SIZE
"""Hashes that the counts of one request cover in all, at most. A client sends each hash twice, and once without a key."""


def demand_possible(topic: str, producer: str, counts: Sequence[KeyCount], counted: Mapping[str, int]) -> int:
    """Return the messages of a request. `counted`: messages by producer of the topic since the last landing.

    Raises InvalidInput for counts that no producer can have, and for more producers than a topic may have.
    """
    hashes = sum(count[1] for count in counts)
    if hashes > REQUEST_HASHES:
        raise InvalidInput(
            f"the counts of {producer} cover {hashes} hashes, and {REQUEST_HASHES} is the most of one request; sum them up by hash"
        )
    messages = sum(count[2] for count in counts)
    total = messages + counted.get(producer, 0)
    if total > PRODUCER_MESSAGES:
        raise InvalidInput(
            f"{producer} counts {total} messages to {topic}, and {PRODUCER_MESSAGES} is the most of one producer "
            f"({MESSAGES_PER_SECOND} a second for {LONGEST_SECONDS} s); count each message once"
        )
    if producer not in counted and len(counted) >= PRODUCERS:
        raise InvalidInput(
            f"{producer} would be producer {len(counted) + 1} that counts keys of {topic}, and {PRODUCERS} is the most; "
            "have fewer of them count"
        )
    return messages


def by_segment(segments: Sequence[Segment], counts: Sequence[KeyCount]) -> dict[int, list[KeyCount]]:
    """Return the counts that overlap each segment, by index. The segments tile the ring, in the order of their ranges."""
    starts = [segment.hash_range.start for segment in segments]
    found: dict[int, list[KeyCount]] = {}
    for count in counts:
        first = max(bisect_right(starts, count[0]) - 1, 0)
        last = bisect_right(starts, count[0] + count[1] - 1) - 1
        for index in range(first, last + 1):
            found.setdefault(index, []).append(count)
    return found
