"""SegmentLayout: a topic's segments at one epoch, and the changes that lead to the next.

An immutable value, as in Pulsar: every change gives a new layout with epoch + 1 and leaves the old one
as it was. The law: the ACTIVE ranges tile the ring, always. Whether a change is wanted is
`evaluator`'s; storing it is the store's, carrying it out on the logs the operation runner's.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from controller.domain import entry_buckets, layout_metadata
from controller.domain.entry_buckets import DEFAULT_BUCKET_BUDGET, DEFAULT_MAX_BUCKETS
from controller.domain.errors import InvalidLayoutChange
from controller.domain.hash_range import FULL_RANGE, RING_SIZE
from controller.domain.reshape import (
    ChildPlan,
    Reshape,
    plan_merge,
    plan_rebucket,
    plan_split,
    validate,
)
from controller.domain.segment import Segment, SegmentState
from controller.domain.segment_graph import SegmentGraph
from controller.domain.shown import shown


@dataclass(frozen=True)
class SegmentLayout(SegmentGraph):
    """The changing half; see `SegmentGraph` for what can be read.

    The constructor and `from_segments` check nothing: call `check_invariants` on what you do not
    trust. `now` is always milliseconds since the Unix epoch.
    """

    @classmethod
    def initial(
        cls,
        segments: int,
        *,
        bucket_budget: int = DEFAULT_BUCKET_BUDGET,
        max_buckets: int = DEFAULT_MAX_BUCKETS,
        now: int,
    ) -> Self:
        """The first layout: 1..65536 segments of equal width, the last taking the remainder.

        `bucket_budget` is shared by all segments, at least one bucket each. The policy's cap on
        segments is not looked at: it binds automatic splits, not the operator who creates a topic.
        """
        if not 1 <= segments <= RING_SIZE:
            raise InvalidLayoutChange(
                f"a topic cannot start with {shown(segments)} segments; give 1 to {RING_SIZE} initial segments"
            )
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
        """A layout from stored rows, taken as they are."""
        return cls(epoch, next_segment_id, {segment.segment_id: segment for segment in segments})

    @classmethod
    def from_selection(cls, epoch: int, next_segment_id: int, segments: Iterable[Segment]) -> Self:
        """A layout of some of a topic's segments, each with its parents' ids: links to what is not among them are left
        out, as `prune` does, and children follow from parents.
        """
        chosen = {segment.segment_id: segment for segment in segments}
        children: dict[int, list[int]] = {}
        for segment_id in sorted(chosen):
            for parent_id in chosen[segment_id].parent_ids:
                children.setdefault(parent_id, []).append(segment_id)
        return cls(
            epoch,
            next_segment_id,
            {
                segment_id: replace(
                    segment,
                    parent_ids=tuple(i for i in segment.parent_ids if i in chosen),
                    child_ids=tuple(children.get(segment_id, ())),
                )
                for segment_id, segment in chosen.items()
            },
        )

    def split(self, segment_id: int, now: int, at: int | Sequence[int] | None = None) -> Self:
        """Seals one segment in favour of two or more; see `plan_split`."""
        return self.apply(plan_split(self, segment_id, at), now)

    def merge(self, a: int, b: int, now: int, max_buckets: int = DEFAULT_MAX_BUCKETS) -> Self:
        """Seals two neighbours in favour of one over their union; see `plan_merge`."""
        return self.apply(plan_merge(self, a, b, max_buckets), now)

    def rebucket(
        self, segment_id: int, bucket_count: int, now: int, max_buckets: int = DEFAULT_MAX_BUCKETS
    ) -> Self:
        """Seals a segment in favour of one with other entry buckets; see `plan_rebucket`."""
        return self.apply(plan_rebucket(self, segment_id, bucket_count, max_buckets), now)

    def apply(self, plan: Reshape, now: int) -> Self:
        """The layout after a planned reshape."""
        return self.reshape(plan.parent_ids, plan.children, now)

    def reshape(self, parent_ids: Sequence[int], children: Sequence[ChildPlan], now: int) -> Self:
        """Seals the parents and lets the children take over their range, in one epoch.

        A child's parents are exactly the sealed segments it overlaps, in the order given. Raises
        SegmentNotFound or InvalidLayoutChange as `reshape.validate` does.
        """
        validate(self, parent_ids, children)
        epoch = self.epoch + 1
        segments = dict(self.segments)
        parents_of = self._parents_of(parent_ids, children)
        depths = {own: self.child_merge_depth(own) for own in set(parents_of.values())}
        heirs: dict[int, list[int]] = {segment_id: [] for segment_id in parent_ids}
        for plan in children:
            own = parents_of[plan.segment_id]
            segments[plan.segment_id] = Segment(
                segment_id=plan.segment_id,
                hash_range=plan.hash_range,
                parent_ids=own,
                created_epoch=epoch,
                created_at_ms=now,
                bucket_splits=plan.bucket_splits,
                merge_depth=depths[own],
            )
            for segment_id in own:
                heirs[segment_id].append(plan.segment_id)
        for segment_id, child_ids in heirs.items():
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
        """Forgets a sealed segment and the links to it, in any order, as Pulsar does; epoch + 1.

        Stored merge depths stay. Relatives on either side of a pruned segment no longer reach each other.
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
        """The JSON record of PIP-468; `extra` (see `metadata_extras`) is written back unchanged."""
        return layout_metadata.write(self, extra or {})

    @classmethod
    def from_metadata(cls, document: Mapping[str, Any]) -> Self:
        """Reads `to_metadata`'s record or Pulsar's; unknown fields are passed over, laws not checked."""
        graph = layout_metadata.read(document)
        return cls(graph.epoch, graph.next_segment_id, graph.segments)

    def _parents_of(
        self, parent_ids: Sequence[int], children: Sequence[ChildPlan]
    ) -> dict[int, tuple[int, ...]]:
        """The parents each child overlaps, in the order given; one search a child and one step a link."""
        by_range = sorted(parent_ids, key=lambda segment_id: self.segments[segment_id].hash_range)
        starts = [self.segments[segment_id].hash_range.start for segment_id in by_range]
        place = {segment_id: index for index, segment_id in enumerate(parent_ids)}
        found = {}
        for plan in children:
            first = bisect_right(starts, plan.hash_range.start) - 1
            end = bisect_right(starts, plan.hash_range.end)
            found[plan.segment_id] = tuple(sorted(by_range[first:end], key=place.__getitem__))
        return found
