"""Arithmetic of entry buckets: how many, where they begin, who owns them (PIP-486).

A segment's buckets tile the ring of *bucket hashes* (the low half of the key hash), whatever range of segment hashes
the segment owns. `bucket_splits` lists the first hash of buckets 1..N-1; bucket 0 begins at 0. The `evaluator` decides
how many there should be. Here they are only counted.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from itertools import pairwise

from controller.domain.hash_range import FULL_RANGE, MAX_HASH, RING_SIZE, HashRange

DEFAULT_BUCKET_BUDGET = 4
DEFAULT_MAX_BUCKETS = 1024
MOST_UNITS = 64
"""Of one segment. A reader has a connection, or a part of a cursor, for each unit that it owns, and no segment is worth a thousand.
Owners that are stored, and positions that applications keep, go by the units: another number takes them all out of use.
"""


def equal_splits(bucket_count: int) -> tuple[int, ...]:
    """Boundaries of `bucket_count` equal buckets; none for 1 or less, clamped to 65536 as in Pulsar."""
    count = min(bucket_count, RING_SIZE)
    return tuple(index * RING_SIZE // count for index in range(1, count))


def are_splits(splits: Sequence[int]) -> bool:
    """True when the boundaries are strictly ascending and within 1..65535."""
    return all(1 <= split <= MAX_HASH for split in splits) and all(
        low < high for low, high in pairwise(splits)
    )


def buckets_for_budget(budget: int, segments: int, max_buckets: int = DEFAULT_MAX_BUCKETS) -> int:
    """Buckets each of `segments` (>= 1) gets from a topic's budget: at least 1, at most `max_buckets` and 65536."""
    return max(1, min(budget // segments, max_buckets, RING_SIZE))


def inherited_on_split(bucket_count: int, children: int = 2) -> int:
    """Buckets of each child of a split; floors, so that splitting never multiplies buckets."""
    return max(1, bucket_count // children)


def rounded_up(count: int) -> int:
    """The next power of two, so that the next few consumers find a bucket."""
    return 1 << max(0, count - 1).bit_length()


def merged(left_count: int, right_count: int, max_buckets: int = DEFAULT_MAX_BUCKETS) -> int:
    """Buckets of the child of a merge: the sum, at most `max_buckets` (apache/pulsar#26434)."""
    return min(left_count + right_count, max_buckets)


def bucket_of(splits: Sequence[int], bucket_hash: int) -> int:
    """Index of the bucket holding `bucket_hash`: the number of boundaries not above it."""
    return bisect_right(splits, bucket_hash)


def forwardable_bucket(splits: Sequence[int], hashes: HashRange) -> int | None:
    """The one bucket that holds a replicated entry as it is; None where it must be cut up and batched anew.

    `hashes` are the smallest and the largest bucket hash that the entry really holds, as its producer wrote them down, and not the
    bounds of the bucket that it came from: those of another cluster's layout may lie anywhere. That its messages belong to
    one segment of the layout is for the caller to know: an entry says nothing of segment hashes.
    """
    first, last = bucket_of(splits, hashes.start), bucket_of(splits, hashes.end)
    return first if first == last else None


def bucket_ranges(splits: Sequence[int]) -> tuple[HashRange, ...]:
    """The buckets as inclusive ranges, bucket 0 first; they tile 0..65535."""
    return FULL_RANGE.cut_many(splits)


def ownership_units(splits: Sequence[int]) -> tuple[HashRange, ...]:
    """What a consumer owns of a segment: single buckets, or `MOST_UNITS` runs of adjacent ones, of equally many or one more, where
    it has more buckets than that. They tile 0..65535, and are the same for all of a segment's life, as its boundaries are.
    """
    buckets = len(splits) + 1
    if buckets <= MOST_UNITS:
        return bucket_ranges(splits)
    return FULL_RANGE.cut_many([splits[unit * buckets // MOST_UNITS - 1] for unit in range(1, MOST_UNITS)])


def owners(bucket_count: int, consumers: Collection[str]) -> dict[str, range]:
    """Bucket indexes of each consumer, as Pulsar's dispatcher deals them: by name, in equal runs.

    Consumer j of k owns `floor(j*N/k) .. floor((j+1)*N/k)-1`; with k > N some own none. The order in
    which the consumers arrived plays no part.
    """
    names = sorted(set(consumers))
    share = len(names)
    return {
        name: range(index * bucket_count // share, (index + 1) * bucket_count // share)
        for index, name in enumerate(names)
    }
