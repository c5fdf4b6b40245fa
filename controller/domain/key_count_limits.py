"""Bounds of the key counts that producers send.

A count says where on the ring messages lie. The amount of load comes from the broker's counters, not from these
counts. So these bounds only have to exclude impossible counts from the sums.
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
"""Maximum number of messages that one producer sends per second."""
LONGEST_SECONDS = 300
"""Maximum time, in seconds, that one request covers; older counts have little value."""
PRODUCER_MESSAGES = MESSAGES_PER_SECOND * LONGEST_SECONDS
"""Maximum number of messages that one producer counts in one request, and between two landings."""
PRODUCERS = 4_096
"""Maximum number of producers of one topic that are counted between two landings."""
SEGMENT_MESSAGES = PRODUCERS * PRODUCER_MESSAGES
"""Maximum number of messages of one segment in one landed row; millions of such rows add up to less than 2^63."""
REQUEST_HASHES = 4 * RING_SIZE
"""Maximum number of hashes that the counts of one request cover in total. A client sends each hash at most twice, and
once for messages without a key.
"""


def demand_possible(topic: str, producer: str, counts: Sequence[KeyCount], counted: Mapping[str, int]) -> int:
    """Return the number of messages in `counts`, the key counts of one request of `producer`; 0 without counts.
    `counted`: for each producer of the topic, the number of messages counted since the last landing. The function
    reads `counted` and does not change it. `topic` appears in error messages only.

    Raises InvalidInput in three cases: the counts cover more than `REQUEST_HASHES` hashes; the messages of the
    request and the producer's messages in `counted` are together more than `PRODUCER_MESSAGES`; or the producer is
    not in `counted` and `counted` has `PRODUCERS` producers already.
    """
    hashes = sum(count[1] for count in counts)
    if hashes > REQUEST_HASHES:
        raise InvalidInput(
            f"the counts of {producer} cover {hashes} hashes, more than the {REQUEST_HASHES} of one request; add them up by hash"
        )
    messages = sum(count[2] for count in counts)
    total = messages + counted.get(producer, 0)
    if total > PRODUCER_MESSAGES:
        raise InvalidInput(
            f"{producer} counts {total} messages to {topic}, more than the {PRODUCER_MESSAGES} of one producer "
            f"({MESSAGES_PER_SECOND} a second for {LONGEST_SECONDS} s); count each message once"
        )
    if producer not in counted and len(counted) >= PRODUCERS:
        raise InvalidInput(
            f"{producer} would be producer {len(counted) + 1} that counts keys of {topic}, more than the limit of {PRODUCERS}; "
            "let fewer producers count"
        )
    return messages


def by_segment(segments: Sequence[Segment], counts: Sequence[KeyCount]) -> dict[int, list[KeyCount]]:
    """Return the counts that overlap each segment, by the segment's index in `segments`; a segment without a count
    is left out. A count that overlaps several segments is in the list of each, undivided. The segments tile the
    ring, in the order of their ranges.
    """
    starts = [segment.hash_range.start for segment in segments]
    by_index: dict[int, list[KeyCount]] = {}
    for count in counts:
        first = max(bisect_right(starts, count[0]) - 1, 0)
        last = bisect_right(starts, count[0] + count[1] - 1) - 1
        for index in range(first, last + 1):
            by_index.setdefault(index, []).append(count)
    return by_index
