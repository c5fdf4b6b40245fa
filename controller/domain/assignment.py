"""Which consumer reads which segment: a pure function of layout, drained segments and names.

Each consumer's client calls it whenever one of the three changes. Equal input gives equal output on every machine,
so nothing of the answer is stored and nobody has to hand it out. It guards key order by handing
out a segment only when everything it descends from is drained. Pulsar looks at the parents of ACTIVE
segments only, so that a sealed parent and its sealed child may go to different consumers at once
(apache/pulsar#26274). Which sharer gets which bucket is not decided here; see `entry_buckets.owners`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from controller.domain.entry_buckets import bucket_ranges
from controller.domain.hash_range import HashRange
from controller.domain.segment import Segment
from controller.domain.segment_graph import SegmentGraph


@dataclass(frozen=True, slots=True)
class AssignedSegment:
    """A segment to read. `buckets` is None for an exclusive reader, else all buckets to share (PIP-486)."""

    segment_id: int
    hash_range: HashRange
    buckets: tuple[HashRange, ...] | None = None


Assignment = dict[str, tuple[AssignedSegment, ...]]


def candidates(layout: SegmentGraph, drained: Collection[int]) -> tuple[Segment, ...]:
    """Segments that may be read now, by range and id: unread ones whose ancestors are all drained.

    `drained` names sealed segments; an ACTIVE one is never finished. A pruned ancestor counts as
    drained. One pass in the order of ids, since a parent's id is always below its children's.
    """
    done = frozenset(drained)
    clear: set[int] = set()
    ready: list[Segment] = []
    for segment_id in sorted(layout.segments):
        segment = layout.segments[segment_id]
        present = [i for i in segment.parent_ids if i in layout.segments]
        if all(i in clear and i in done for i in present):
            clear.add(segment_id)
            if segment.is_active or segment_id not in done:
                ready.append(segment)
    return tuple(sorted(ready, key=lambda s: (s.hash_range.start, s.hash_range.end, s.segment_id)))


def assign(
    layout: SegmentGraph, drained: Collection[int], consumers: Collection[str], *, share_buckets: bool = False
) -> Assignment:
    """The segments of each consumer; every consumer has an entry, empty when idle.

    Candidate i goes to consumer i mod K, names in order, as in Pulsar. With `share_buckets` and more consumers than
    candidates, the surplus is dealt over the candidates up to their bucket counts. Consumers that share a segment each
    receive its complete list of buckets.
    """
    names = sorted(set(consumers))
    ready = candidates(layout, drained)
    if share_buckets and len(names) > len(ready):
        return _shared(ready, names)
    return {
        name: tuple(AssignedSegment(s.segment_id, s.hash_range) for s in ready[index :: len(names)])
        for index, name in enumerate(names)
    }


def _shared(ready: Sequence[Segment], names: Sequence[str]) -> Assignment:
    """Consecutive runs of consumers, one a segment. Consumers that are left over get none."""
    shares: Assignment = dict.fromkeys(names, ())
    waiting = iter(names)
    for segment, readers in zip(ready, _readers(ready, len(names)), strict=True):
        buckets = bucket_ranges(segment.bucket_splits) if readers > 1 else None
        for _ in range(readers):
            shares[next(waiting)] = (AssignedSegment(segment.segment_id, segment.hash_range, buckets),)
    return shares


def _readers(ready: Sequence[Segment], consumers: int) -> list[int]:
    """Readers per segment: one each, then the surplus one at a time, in order, skipping the full."""
    readers = [1] * len(ready)
    surplus = consumers - len(ready)
    while surplus > 0:
        open_to_more = [i for i, segment in enumerate(ready) if readers[i] < segment.bucket_count]
        if not open_to_more:
            break
        for index in open_to_more[:surplus]:
            readers[index] += 1
        surplus -= len(open_to_more)
    return readers
