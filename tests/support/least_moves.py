"""The fewest buckets that can move: in small cases, every fair assignment is enumerated.

It shares no code with `controller.domain.assignment`, whose results it judges. Whole segments are enumerated by the number of segments
that each consumer has so far; shared ones by each set of consumers that are used.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from itertools import combinations

from controller.domain.assignment import Assignment, SegmentBucket
from controller.domain.entry_buckets import bucket_ranges
from controller.domain.hash_range import HashRange
from controller.domain.segment import Segment
from controller.domain.segment_graph import SegmentGraph

NEVER = 10**9


def homes(
    layout: SegmentGraph, consumers: Collection[str], owners: Mapping[SegmentBucket, str], unit: SegmentBucket
) -> set[str]:
    """Return the consumers to which this bucket can be assigned without a move. Empty if any consumer can get it."""
    if unit in owners:
        return {owners[unit]} & set(consumers)
    owned: dict[str, int] = {}
    for parent_id in layout.segments[unit.segment_id].parent_ids:
        for (segment_id, bucket), name in owners.items():
            if segment_id == parent_id and name in consumers:
                owned[name] = owned.get(name, 0) + _overlap(bucket, unit.bucket)
    widest = max(owned.values(), default=0)
    return {name for name, width in owned.items() if width == widest > 0}


def _overlap(first: HashRange, second: HashRange) -> int:
    return max(0, min(first.end, second.end) - max(first.start, second.start) + 1)


def moves(layout: SegmentGraph, owners: Mapping[SegmentBucket, str], shares: Assignment) -> int:
    """Return the number of buckets that a living owner, or the owner of their parents, loses to another consumer."""
    return sum(
        bool(at_home) and name not in at_home
        for name, share in shares.items()
        for unit in share
        for at_home in [homes(layout, shares, owners, unit)]
    )


def least_moves(
    layout: SegmentGraph,
    ready: Sequence[Segment],
    consumers: Collection[str],
    owners: Mapping[SegmentBucket, str],
    *,
    share_buckets: bool,
) -> int:
    """Return the fewest moves of any fair assignment of these segments; needs at least one consumer."""
    names = sorted(consumers)
    at_home = [
        [
            homes(layout, names, owners, SegmentBucket(segment.segment_id, bucket))
            for bucket in bucket_ranges(segment.bucket_splits)
        ]
        for segment in ready
    ]
    if share_buckets and len(names) > len(ready):
        return _least_shared(at_home, names)
    lost = [[sum(bool(h) and name not in h for h in segment) for name in names] for segment in at_home]
    return _least_dealt(lost, len(names))


def _least_dealt(lost: Sequence[Sequence[int]], readers: int) -> int:
    """Return the least cost if each thing goes to one reader, and all readers get equally many or one more; `lost[i][j]` is the cost if
    reader j gets thing i.
    """
    least, more = divmod(len(lost), readers)
    reached = {(0,) * readers: 0}
    for costs in lost:
        onward: dict[tuple[int, ...], int] = {}
        for counts, so_far in reached.items():
            for reader, cost in enumerate(costs):
                grown = (*counts[:reader], counts[reader] + 1, *counts[reader + 1 :])
                if grown[reader] <= least + bool(more) and so_far + cost < onward.get(grown, NEVER):
                    onward[grown] = so_far + cost
        reached = onward
    return min(so_far for counts, so_far in reached.items() if min(counts) >= least)


def _least_shared(at_home: Sequence[Sequence[set[str]]], names: Sequence[str]) -> int:
    sizes = [len(segment) for segment in at_home]
    level, odd = _level(sizes, len(names))

    @cache
    def divided(index: int, readers: tuple[str, ...]) -> int:
        lost = [[bool(h) and name not in h for name in readers] for h in at_home[index]]
        return _least_dealt(lost, len(readers))

    @cache
    def least(index: int, free: tuple[str, ...], odd: int) -> int:
        if index == len(sizes):
            return 0 if odd == 0 else NEVER
        base = min(level, sizes[index])
        numbers = [base, base + 1] if odd and sizes[index] > level else [base]
        return min(
            divided(index, readers) + least(index + 1, _without(free, readers), odd - (number - base))
            for number in numbers
            for readers in combinations(free, number)
        )

    return least(0, tuple(names), odd)


def _level(sizes: Sequence[int], consumers: int) -> tuple[int, int]:
    """Return the number of readers of every segment that has enough buckets, and the number of segments with one reader more."""
    places = min(consumers, sum(sizes))
    level = max(n for n in range(1, consumers + 1) if sum(min(size, n) for size in sizes) <= places)
    return level, places - sum(min(size, level) for size in sizes)


def _without(free: Iterable[str], taken: Collection[str]) -> tuple[str, ...]:
    return tuple(name for name in free if name not in taken)
