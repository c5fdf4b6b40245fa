"""SegmentLayout: a topic's segments at one epoch, and the changes that lead to the next epoch.

A layout is an immutable value, as in Pulsar: every change returns another layout with epoch + 1 and leaves the
original unchanged. `evaluator` decides whether a change is needed, the store records it, and the operation runner
performs it on the logs.

Invariants: the active segments always tile the hash ring, and parents and children agree. Building a layout checks
nothing, so that a layout of a few hundred rows loads cheaply; data that may be wrong is checked by `check_invariants`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Self

from controller.domain import entry_buckets, layout_metadata
from controller.domain.entry_buckets import DEFAULT_BUCKET_BUDGET, DEFAULT_MAX_BUCKETS, are_splits
from controller.domain.errors import InvalidLayoutChange, InvariantViolated
from controller.domain.formatting import shown
from controller.domain.hash_range import FULL_RANGE, MAX_HASH, RING_SIZE
from controller.domain.reshape import ChildPlan, Reshape, plan_merge, plan_rebucket, plan_split, validate
from controller.domain.segment import Segment, SegmentState
from controller.domain.segment_graph import COUNTED_MERGES, SegmentGraph


def demand_initial_count(segments: int) -> None:
    """Raise InvalidLayoutChange unless a topic can start with this number of segments, 1..65536."""
    if not 1 <= segments <= RING_SIZE:
        raise InvalidLayoutChange(
            f"a topic cannot start with {shown(segments)} segments; give 1 to {RING_SIZE} initial segments"
        )


@dataclass(frozen=True)
class SegmentLayout(SegmentGraph):
    """A layout with its changes; `SegmentGraph` holds the queries.

    The constructor and `from_segments` check nothing: call `check_invariants` on data that may be wrong. `now` is
    always milliseconds since the Unix epoch.
    """

    def check_invariants(self) -> None:
        """Raise InvariantViolated unless the layout is valid. The message names the first violated invariant and its
        values. A layout without segments, as a deleted topic has, is valid.

        In a valid layout, the ranges of the ACTIVE segments tile the ring. A parent and a child that are both present
        list each other and overlap. Ids, epochs, bucket boundaries and merge depths are consistent (`_check_state`,
        `_check_link`).
        """
        _check_tiling(self)
        children = {key: frozenset(segment.child_ids) for key, segment in self.segments.items()}
        parents = {key: frozenset(segment.parent_ids) for key, segment in self.segments.items()}
        for key, segment in self.segments.items():
            _demand(key == segment.segment_id, f"segment {segment} is stored under id {shown(key)}")
            _demand(
                key < self.next_segment_id,
                f"segment id {shown(key)} >= next id {shown(self.next_segment_id)}",
            )
            _check_state(self, segment)
            for parent_id in segment.parent_ids:
                _check_link(self, parent_id, segment, children)
            for child_id in children[key]:
                is_unlinked = child_id in parents and key not in parents[child_id]
                _demand(not is_unlinked, f"child {shown(child_id)} does not list parent {segment}")

    @classmethod
    def initial(
        cls,
        segments: int,
        *,
        bucket_budget: int = DEFAULT_BUCKET_BUDGET,
        max_buckets: int = DEFAULT_MAX_BUCKETS,
        now: int,
    ) -> Self:
        """Return the first layout of a topic, of epoch 0. The layout has `segments` ACTIVE segments (1..65536) of
        equal width, of which the last takes the remainder. Their ids ascend from 0 in the order of the ranges.

        `bucket_budget` is the number of entry buckets of the topic. Each segment gets an equal part of the budget,
        rounded down, but at least one bucket and at most `max_buckets`. `now`: creation time of the segments.

        The policy's limit of segments is not checked, because the limit applies to automatic splits and not to the
        operator who creates a topic. Raises InvalidLayoutChange for a number of segments outside 1..65536.
        """
        demand_initial_count(segments)
        buckets = entry_buckets.buckets_for_budget(bucket_budget, segments, max_buckets)
        splits = entry_buckets.equal_splits(buckets)
        ranges = FULL_RANGE.divide(segments)
        return cls.from_segments(
            0,
            segments,
            (Segment(i, r, created_at_ms=now, bucket_splits=splits) for i, r in enumerate(ranges)),
        )

    @classmethod
    def from_segments(cls, epoch: int, next_segment_id: int, segments: Iterable[Segment]) -> Self:
        """Return the layout that consists of these segments, which are not checked."""
        return cls(epoch, next_segment_id, {segment.segment_id: segment for segment in segments})

    @classmethod
    def from_selection(cls, epoch: int, next_segment_id: int, segments: Iterable[Segment]) -> Self:
        """Return a layout that consists of `segments`, some of the segments of a topic. `parent_ids` of each segment
        keeps only the ids of segments in `segments`. `child_ids` is derived from the `parent_ids` of the other
        segments; the given `child_ids` are ignored. Nothing is checked, so the ACTIVE ranges of the result need not
        tile the ring.
        """
        selected = {segment.segment_id: segment for segment in segments}
        children: dict[int, list[int]] = {}
        for segment_id in sorted(selected):
            for parent_id in selected[segment_id].parent_ids:
                children.setdefault(parent_id, []).append(segment_id)
        return cls(
            epoch,
            next_segment_id,
            {
                segment_id: replace(
                    segment,
                    parent_ids=tuple(i for i in segment.parent_ids if i in selected),
                    child_ids=tuple(children.get(segment_id, ())),
                )
                for segment_id, segment in selected.items()
            },
        )

    def split(self, segment_id: int, now: int, at: int | Sequence[int] | None = None) -> Self:
        """Return the next layout: one segment is sealed, and two or more segments take over its range. The range is
        cut at its midpoint (`at` None) or at `at`, the first hash of each child but the first. Raises
        SegmentNotFound, or InvalidLayoutChange for a sealed segment, a range of one hash, an empty list of cut points,
        and cut points that do not ascend within the range.
        """
        return self.apply(plan_split(self, segment_id, at), now)

    def merge(self, a: int, b: int, now: int, max_buckets: int = DEFAULT_MAX_BUCKETS) -> Self:
        """Return the next layout: two neighbours are sealed, and one segment takes over their range, with the sum of
        their entry buckets but at most `max_buckets`. Raises SegmentNotFound, or InvalidLayoutChange for segments
        that are sealed or not adjacent.
        """
        return self.apply(plan_merge(self, a, b, max_buckets), now)

    def rebucket(
        self, segment_id: int, bucket_count: int, now: int, max_buckets: int = DEFAULT_MAX_BUCKETS
    ) -> Self:
        """Return the next layout: a segment is sealed, and a segment with `bucket_count` equal entry buckets takes
        over its range. Raises SegmentNotFound, or InvalidLayoutChange for a sealed segment, a count outside
        1..`max_buckets`, and buckets that the segment has already.
        """
        return self.apply(plan_rebucket(self, segment_id, bucket_count, max_buckets), now)

    def apply(self, plan: Reshape, now: int) -> Self:
        """Return the layout of the next epoch, after a planned reshape. Raises SegmentNotFound for an unknown parent, and
        InvalidLayoutChange if the plan does not fit this layout otherwise.
        """
        return self.reshape(plan.parent_ids, plan.children, now)

    def reshape(self, parent_ids: Sequence[int], children: Sequence[ChildPlan], now: int) -> Self:
        """Return the layout of the next epoch, in which the parents are sealed and the children are ACTIVE; the
        original layout is unchanged. The parents of a child are the segments of `parent_ids` that the child overlaps,
        in the order of `parent_ids`. Parents and children may be in any order. `now`: time of the seals and of the
        creation of the children, in milliseconds since the Unix epoch.

        Raises SegmentNotFound for an unknown parent. Raises InvalidLayoutChange unless the parents are ACTIVE and
        adjacent, the children tile the range of the parents, the children's ids are different and unused, and the
        children's bucket boundaries are valid (`validate` in `reshape`).
        """
        validate(self, parent_ids, children)
        epoch = self.epoch + 1
        segments = dict(self.segments)
        parents_of = self._parents_of(parent_ids, children)
        depths = {
            own_parents: self.child_merge_depth(own_parents) for own_parents in set(parents_of.values())
        }
        children_of: dict[int, list[int]] = {segment_id: [] for segment_id in parent_ids}
        for plan in children:
            own_parents = parents_of[plan.segment_id]
            segments[plan.segment_id] = Segment(
                segment_id=plan.segment_id,
                hash_range=plan.hash_range,
                parent_ids=own_parents,
                created_epoch=epoch,
                created_at_ms=now,
                bucket_splits=plan.bucket_splits,
                merge_depth=depths[own_parents],
            )
            for segment_id in own_parents:
                children_of[segment_id].append(plan.segment_id)
        for segment_id, child_ids in children_of.items():
            segments[segment_id] = replace(
                self.segments[segment_id],
                state=SegmentState.SEALED,
                sealed_epoch=epoch,
                sealed_at_ms=now,
                child_ids=tuple(child_ids),
            )
        next_segment_id = max(self.next_segment_id, *(plan.segment_id + 1 for plan in children))
        return type(self)(epoch, next_segment_id, segments)

    def prune(self, segment_id: int) -> Self:
        """Return the layout of the next epoch, without one sealed segment. The parents and the children of the
        segment no longer list the segment, and are not linked to each other instead. Stored merge depths stay as they
        are.

        Segments may be pruned in any order, as in Pulsar; whether the segment is drained is not checked. Raises
        SegmentNotFound for an unknown segment, and InvalidLayoutChange for an active segment.
        """
        pruned = self.segment(segment_id)
        if pruned.is_active:
            raise InvalidLayoutChange(
                f"segment {pruned} is active and cannot be pruned; seal and drain it first"
            )
        segments = dict(self.segments)
        del segments[segment_id]
        for relative in (self.segments[i] for i in (*pruned.parent_ids, *pruned.child_ids) if i in segments):
            segments[relative.segment_id] = replace(
                relative,
                parent_ids=tuple(i for i in relative.parent_ids if i != segment_id),
                child_ids=tuple(i for i in relative.child_ids if i != segment_id),
            )
        return type(self)(self.epoch + 1, self.next_segment_id, segments)

    def to_metadata(self, extra: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the layout as the JSON record of PIP-468. `extra`: the record that was read; its fields that do not
        belong to the layout (properties, policy, unknown fields) are added unchanged.
        """
        return layout_metadata.write(self, extra or {})

    @classmethod
    def from_metadata(cls, document: Mapping[str, Any]) -> Self:
        """Return the layout in a record of `to_metadata` or of Pulsar. Unknown fields are ignored, and invariants
        are not checked. Raises InvalidInput for a record that cannot be read.
        """
        graph = layout_metadata.read(document)
        return cls(graph.epoch, graph.next_segment_id, graph.segments)

    def _parents_of(
        self, parent_ids: Sequence[int], children: Sequence[ChildPlan]
    ) -> dict[int, tuple[int, ...]]:
        """Return, by the child's id, the ids of the parents that each child overlaps, in the order of `parent_ids`. The
        parents' ranges must be adjacent. Takes one search per child and one step per link.
        """
        by_range = sorted(parent_ids, key=lambda segment_id: self.segments[segment_id].hash_range)
        starts = [self.segments[segment_id].hash_range.start for segment_id in by_range]
        position_of = {segment_id: index for index, segment_id in enumerate(parent_ids)}
        overlapping = {}
        for plan in children:
            first = bisect_right(starts, plan.hash_range.start) - 1
            end = bisect_right(starts, plan.hash_range.end)
            overlapping[plan.segment_id] = tuple(sorted(by_range[first:end], key=position_of.__getitem__))
        return overlapping


def _check_tiling(layout: SegmentGraph) -> None:
    """Raise InvariantViolated unless the ACTIVE ranges tile the ring. A deleted topic has no segments and
    passes.
    """
    if not layout.segments:
        return
    _demand(bool(layout.active), f"no segment is active at epoch {shown(layout.epoch)}")
    first, last = layout.active[0], layout.active[-1]
    _demand(first.hash_range.start == 0, f"the ring is uncovered below active segment {first}")
    _demand(last.hash_range.end == MAX_HASH, f"the ring is uncovered above active segment {last}")
    for low, high in pairwise(layout.active):
        _demand(low.hash_range.end + 1 == high.hash_range.start, f"{low} and {high} leave a gap or overlap")


def _check_state(layout: SegmentGraph, segment: Segment) -> None:
    """Raise InvariantViolated unless the segment's own fields are consistent:

    An active segment has no sealing epoch, no sealing time and no children. A sealed segment has a sealing epoch and
    a sealing time. The epochs satisfy 0 <= created <= sealed <= the layout's epoch. The bucket boundaries ascend
    within the ring. The merge depth is not below the number of merges among the segment and its present ancestors, of
    which at most `COUNTED_MERGES` count.
    """
    sealed = (segment.sealed_epoch, segment.sealed_at_ms)
    if segment.is_active:
        _demand(sealed == (None, None), f"active segment {segment} is recorded as sealed {shown(sealed)}")
        _demand(not segment.child_ids, f"active segment {segment} has children {shown(segment.child_ids)}")
    else:
        _demand(None not in sealed, f"sealed segment {segment} has an incomplete seal {shown(sealed)}")
    until = layout.epoch if segment.sealed_epoch is None else segment.sealed_epoch
    _demand(
        0 <= segment.created_epoch <= until <= layout.epoch,
        f"segment {segment} has epochs {shown(segment.created_epoch)} to {shown(until)}, at layout epoch {shown(layout.epoch)}",
    )
    _demand(
        are_splits(segment.bucket_splits),
        f"bucket splits {shown(segment.bucket_splits)} of {segment} do not ascend within the ring",
    )
    count = min(len(layout.merges[segment.segment_id]), COUNTED_MERGES)
    _demand(
        segment.merge_depth >= count,
        f"merge depth {shown(segment.merge_depth)} of {segment} is below its {count} merges",
    )


def _check_link(
    layout: SegmentGraph, parent_id: int, child: Segment, children: Mapping[int, Collection[int]]
) -> None:
    """Raise InvariantViolated unless the parent with the id `parent_id` and the child fit together. The id of the
    parent must be lower than the id of the child. If the layout contains the parent, three more conditions must be
    met: the parent lists the child, the two ranges overlap, and the merge depth of the parent is not greater than
    that of the child.

    `children`: the ids of the children that each segment lists, by the id of the segment.
    """
    _demand(parent_id < child.segment_id, f"parent {shown(parent_id)} is younger than its child {child}")
    parent = layout.segments.get(parent_id)
    if parent is not None:
        _demand(child.segment_id in children[parent_id], f"parent {parent} does not list child {child}")
        _demand(
            parent.hash_range.overlaps(child.hash_range),
            f"child {child} does not overlap its parent {parent}",
        )
        _demand(parent.merge_depth <= child.merge_depth, f"merge depth falls from {parent} to {child}")


def _demand(holds: bool, violation: str) -> None:
    """Raise InvariantViolated with the text `violation` unless `holds` is True."""
    if not holds:
        raise InvariantViolated(f"layout law broken: {violation}; restore the layout from its history")
