"""The queries on a layout: which segments are active, which covers a hash, which descend from which.

`SegmentLayout` adds the changes; `reshape` plans them with these queries. Building a graph checks nothing, so that a
layout of a few hundred rows loads cheaply; `SegmentLayout.check_invariants` checks a layout whose data may be wrong.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from controller.domain.errors import SegmentNotFound
from controller.domain.formatting import shown
from controller.domain.hash_range import MAX_HASH
from controller.domain.segment import Segment

COUNTED_MERGES = 64
"""Maximum number of merges that are distinguished above one segment. Stored depths are exact up to this number and at
least this number beyond it. An exact count would cost more with every reshape of a topic, and no limit lies above it.
"""


@dataclass(frozen=True)
class SegmentGraph:
    """Segments of one topic at one epoch; treat `segments` as read-only.

    The class has no slots, because the cached properties are computed once and stored in the instance.
    """

    epoch: int
    next_segment_id: int
    segments: Mapping[int, Segment]

    @cached_property
    def active(self) -> tuple[Segment, ...]:
        """The ACTIVE segments, sorted by range. Pulsar's order varies between runs; this order never does."""
        return tuple(sorted((s for s in self.segments.values() if s.is_active), key=_by_range))

    @cached_property
    def _active_starts(self) -> tuple[int, ...]:
        return tuple(segment.hash_range.start for segment in self.active)

    def segment(self, segment_id: int) -> Segment:
        """Return the segment with this id. Raises SegmentNotFound."""
        try:
            return self.segments[segment_id]
        except KeyError:
            raise SegmentNotFound(
                f"segment {shown(segment_id)} is not in the layout at epoch {shown(self.epoch)}; "
                "look up the layout again, it may have been pruned"
            ) from None

    def segment_for(self, segment_hash: int) -> Segment:
        """Return the ACTIVE segment that covers a segment hash. Raises SegmentNotFound if none does, as for a hash
        outside the ring.
        """
        index = bisect_right(self._active_starts, segment_hash) - 1
        if index < 0 or not self.active[index].hash_range.contains(segment_hash):
            raise SegmentNotFound(
                f"no active segment covers hash {shown(segment_hash)} at epoch {shown(self.epoch)}; "
                f"hashes run from 0 to {MAX_HASH}, look up the layout again"
            )
        return self.active[index]

    def sealed_for(self, segment_hash: int) -> tuple[Segment, ...]:
        """Return the sealed segments that cover a segment hash, the oldest first; empty if none does. These segments hold
        the earlier messages of the hash's keys.
        """
        sealed = (
            s for s in self.segments.values() if not s.is_active and s.hash_range.contains(segment_hash)
        )
        return tuple(sorted(sealed, key=lambda s: s.segment_id))

    def ancestors(self, segment_id: int) -> frozenset[int]:
        """Return the ids of the present ancestors of the segment, without the segment itself and without ancestors that
        only a missing segment leads to. Raises SegmentNotFound for an unknown segment.
        """
        return self.ancestors_of(self.segment(segment_id).parent_ids)

    def ancestors_of(self, parent_ids: Iterable[int]) -> frozenset[int]:
        """Return the ids of the segments `parent_ids` and of all their ancestors. A segment that the graph does not
        contain is left out. Ancestors of such a segment are left out too, unless another path leads to them. The
        result is empty for no ids.
        """
        ancestors: set[int] = set()
        pending = [i for i in parent_ids if i in self.segments]
        while pending:
            segment_id = pending.pop()
            if segment_id not in ancestors:
                ancestors.add(segment_id)
                pending.extend(i for i in self.segments[segment_id].parent_ids if i in self.segments)
        return frozenset(ancestors)

    def descendants(self, segment_id: int) -> frozenset[int]:
        """Return the ids of the descendants of the segment, ACTIVE and sealed ones: its children, their children, and
        so on, without the segment itself. A segment that the graph does not contain, such as a pruned one, is left
        out, and so are descendants to which only such a segment leads. Raises SegmentNotFound if the graph does not
        contain the segment `segment_id`.
        """
        descendants: set[int] = set()
        pending = list(self.segment(segment_id).child_ids)
        while pending:
            child_id = pending.pop()
            if child_id in self.segments and child_id not in descendants:
                descendants.add(child_id)
                pending.extend(self.segments[child_id].child_ids)
        return frozenset(descendants)

    def lineage(self, segment_id: int) -> tuple[int, ...]:
        """Return the ids of the ancestors, of the segment itself and of the descendants, each once, ascending (oldest
        first). Raises SegmentNotFound for an unknown segment.
        """
        return tuple(sorted(self.ancestors(segment_id) | {segment_id} | self.descendants(segment_id)))

    def merge_depths_by_ancestry(self) -> dict[int, int]:
        """Return the merge depth of every segment as Pulsar computes it, by segment id. The depth is the number of
        distinct merges among the segment itself and its present ancestors, without a limit. A merge is a segment with
        two or more parents. The stored merge depths have no effect. A parent's id must be lower than the ids of its
        children.
        """
        unvisited_children = Counter(
            parent_id for segment in self.segments.values() for parent_id in segment.parent_ids
        )
        merges_of: dict[int, int] = {}
        depths: dict[int, int] = {}
        merge_count = 0
        for segment_id in sorted(self.segments):
            parent_ids = self.segments[segment_id].parent_ids
            merges = 0
            for parent_id in parent_ids:
                merges |= merges_of.get(parent_id, 0)
                unvisited_children[parent_id] -= 1
                if not unvisited_children[parent_id]:
                    merges_of.pop(parent_id, None)
            if len(parent_ids) >= 2:
                merges |= 1 << merge_count
                merge_count += 1
            if unvisited_children[segment_id]:
                merges_of[segment_id] = merges
            depths[segment_id] = merges.bit_count()
        return depths

    def child_merge_depth(self, parent_ids: tuple[int, ...]) -> int:
        """Return the merge depth to store for a new segment with the parents `parent_ids`. This is the larger of two
        numbers: the highest stored depth of a parent, and the number of different merges among the parents and their
        ancestors, of which at most `COUNTED_MERGES` count. If there are several parents, 1 is added.

        A parent that the graph does not contain has no depth and no ancestors, but counts as one of several parents.
        The stored depth is compared too, because pruning removes merges that the number would count. Without parents
        the result is 0.
        """
        is_merge = int(len(parent_ids) >= 2)
        stored = max((self.segments[i].merge_depth for i in parent_ids if i in self.segments), default=0)
        merges = _union(self.merges[i] for i in parent_ids if i in self.merges)
        return is_merge + max(stored, min(len(merges), COUNTED_MERGES))

    @cached_property
    def merges(self) -> Mapping[int, frozenset[int]]:
        """The ids of the merges among each segment and its present ancestors, by the segment's id. A merge is a segment
        that names two or more parents, present or not. The set is complete if it has fewer than `COUNTED_MERGES` ids; a
        larger set may lack merges, also the segment itself. Ancestors that only a missing segment leads to are left
        out. A parent's id must be lower than its children's.
        """
        merges_of: dict[int, frozenset[int]] = {}
        for segment_id in sorted(self.segments):
            parent_ids = self.segments[segment_id].parent_ids
            merges = _union(merges_of[i] for i in parent_ids if i in merges_of)
            if len(parent_ids) >= 2 and len(merges) < COUNTED_MERGES:
                merges |= {segment_id}
            merges_of[segment_id] = merges
        return merges_of


def _union(sets: Iterable[frozenset[int]]) -> frozenset[int]:
    """Return the union of the sets, without the sets that follow once it has `COUNTED_MERGES` elements. A set that
    contains all sets before it is not copied.
    """
    joined: frozenset[int] = frozenset()
    for merges in sets:
        if len(joined) >= COUNTED_MERGES:
            break
        joined = merges if joined <= merges else joined | merges
    return joined


def _by_range(segment: Segment) -> tuple[int, int]:
    return segment.hash_range.start, segment.hash_range.end
