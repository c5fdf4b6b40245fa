"""Arithmetic of entry buckets: their number, their boundaries and their owners (PIP-486).

A segment's buckets tile the ring of *bucket hashes* (the low half of the key hash), whatever range of segment hashes
the segment owns. `bucket_splits` lists the first hash of buckets 1..N-1; bucket 0 begins at 0. `evaluator` decides
how many buckets a segment should have; this module only computes with them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from itertools import pairwise

from controller.domain.hash_range import FULL_RANGE, MAX_HASH, RING_SIZE, HashRange

DEFAULT_BUCKET_BUDGET = 4
"""Default number of entry buckets that the segments of a topic share."""
DEFAULT_MAX_BUCKETS = 1024
"""Default maximum number of entry buckets of one segment."""
MOST_UNITS = 64
"""Maximum number of ownership units of one segment. A reader has a connection, or a part of a cursor, for each unit that
the reader owns, and a segment does not justify a thousand of them. Stored owners, and positions that applications
keep, refer to the units: changing this number invalidates all of them.
"""


def equal_splits(bucket_count: int) -> tuple[int, ...]:
    """Return the boundaries of `bucket_count` buckets of equal width: the first hash of each bucket except bucket 0. A
    count of 1 or less has no boundaries; a count above 65536 counts as 65536, as in Pulsar.
    """
    count = min(bucket_count, RING_SIZE)
    return tuple(index * RING_SIZE // count for index in range(1, count))


def are_splits(splits: Sequence[int]) -> bool:
    """Return True if `splits` are valid boundaries: strictly ascending and within 1..65535, or empty."""
    return all(1 <= split <= MAX_HASH for split in splits) and all(
        low < high for low, high in pairwise(splits)
    )


def buckets_for_budget(budget: int, segments: int, max_buckets: int = DEFAULT_MAX_BUCKETS) -> int:
    """Return the number of buckets that each of `segments` (>= 1) gets from a topic's budget: at least 1, at most
    `max_buckets` and 65536.
    """
    return max(1, min(budget // segments, max_buckets, RING_SIZE))


def inherited_on_split(bucket_count: int, children: int = 2) -> int:
    """Return the number of buckets that each of `children` inherits from a parent with `bucket_count` buckets: an equal
    part, rounded down so that a split does not multiply buckets, but at least 1.
    """
    return max(1, bucket_count // children)


def rounded_up(count: int) -> int:
    """Return the smallest power of two that is not less than `count`; the buckets beyond `count` are for consumers that
    join later.
    """
    return 1 << max(0, count - 1).bit_length()


def merged(left_count: int, right_count: int, max_buckets: int = DEFAULT_MAX_BUCKETS) -> int:
    """Return the number of buckets of the child of a merge: the sum of the parents' numbers, at most `max_buckets`
    (apache/pulsar#26434).
    """
    return min(left_count + right_count, max_buckets)


def bucket_of(splits: Sequence[int], bucket_hash: int) -> int:
    """Return the index of the bucket that holds `bucket_hash`: the number of boundaries that are not above the hash."""
    return bisect_right(splits, bucket_hash)


def bucket_ranges(splits: Sequence[int]) -> tuple[HashRange, ...]:
    """Return the buckets as inclusive ranges, bucket 0 first; the ranges tile 0..65535. Raises InvalidRange for
    boundaries for which `are_splits` is False.
    """
    return FULL_RANGE.cut_many(splits)


def ownership_units(splits: Sequence[int]) -> tuple[HashRange, ...]:
    """Return the units of a segment that consumers own, as inclusive hash ranges in ascending order. The units are
    the segment's buckets. For a segment with more than `MOST_UNITS` buckets, the units are `MOST_UNITS` runs of
    adjacent buckets, whose numbers of buckets differ by at most one.

    The units tile 0..65535 and never change during a segment's life, because the boundaries of a segment never
    change. `splits`: the boundaries of the buckets. Raises InvalidRange for boundaries for which `are_splits` is
    False; of more than `MOST_UNITS` buckets only some boundaries are checked.
    """
    buckets = len(splits) + 1
    if buckets <= MOST_UNITS:
        return bucket_ranges(splits)
    return FULL_RANGE.cut_many([splits[unit * buckets // MOST_UNITS - 1] for unit in range(1, MOST_UNITS)])


def owners(bucket_count: int, consumers: Collection[str]) -> dict[str, range]:
    """Return the bucket indexes of each consumer, by the consumer's name, as Pulsar's dispatcher assigns them: the
    consumers in the order of their names get equal runs of buckets. The order in which the consumers arrived has no
    effect, and a repeated name counts once. The result is empty without a consumer.

    Consumer j of k consumers owns the buckets `floor(j*N/k)` to `floor((j+1)*N/k)-1` of N buckets. If there are more
    consumers than buckets, some consumers have an empty range.
    """
    names = sorted(set(consumers))
    consumer_count = len(names)
    return {
        name: range(index * bucket_count // consumer_count, (index + 1) * bucket_count // consumer_count)
        for index, name in enumerate(names)
    }
