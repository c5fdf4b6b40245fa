"""Reshape: the one operation behind every layout change, as a plan that consists of data.

A reshape seals adjacent active segments and creates segments that tile the same range. Split is 1 → 2 or 1 → k, merge
2 → 1, rebucket and repair 1 → 1, recut n → m; the kind is a label for people, cooldowns and metrics. The functions
here build a plan from a layout and refuse plans that can never be valid. `SegmentLayout.reshape` applies a plan to
the metadata, the operation runner to the data plane.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from controller.domain import entry_buckets
from controller.domain.decision import Decision, Merge, Rebucket, Recut, Split
from controller.domain.entry_buckets import DEFAULT_MAX_BUCKETS
from controller.domain.errors import InvalidLayoutChange, InvalidRange
from controller.domain.formatting import shown
from controller.domain.hash_range import RING_SIZE, HashRange, hexadecimal
from controller.domain.segment import Segment
from controller.domain.segment_graph import SegmentGraph
from controller.domain.whole_numbers import MOST


class ReshapeKind(StrEnum):
    """Kind of a reshape, as people name it; it determines which cooldown the reshape starts."""

    SPLIT = "split"
    MERGE = "merge"
    REBUCKET = "rebucket"
    RECUT = "recut"
    HEAL = "heal"


@dataclass(frozen=True, slots=True)
class ChildPlan:
    """A planned segment: its reserved id, its range and its bucket boundaries."""

    segment_id: int
    hash_range: HashRange
    bucket_splits: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Reshape:
    """A plan: parents in the order in which they are terminated, children in the order of their ranges."""

    kind: ReshapeKind
    parent_ids: tuple[int, ...]
    children: tuple[ChildPlan, ...]

    def validate_against(self, layout: SegmentGraph) -> None:
        """Raise SegmentNotFound for an unknown parent, and InvalidLayoutChange if the plan does not fit the layout
        otherwise. The layout may have changed since the plan was made.
        """
        validate(layout, self.parent_ids, self.children)


def validate(layout: SegmentGraph, parent_ids: Sequence[int], children: Sequence[ChildPlan]) -> None:
    """Check that a reshape of the segments `parent_ids` into `children` fits the layout. Returns nothing.

    Raises SegmentNotFound for a parent that is not in the layout. Raises InvalidLayoutChange if there are no parents
    or no children, if a parent is repeated or sealed, if the parents are not adjacent, if the children do not tile
    exactly the range of the parents, if the children's ids are not different, unused and at most `MOST`, or if their
    bucket boundaries do not ascend strictly within 1..65535. Parents and children may be in any order.

    An id counts as unused if no segment of the layout has the id and the id is higher than every parent's id. Ids
    below `next_segment_id` are allowed, since another operation may have reserved and committed later ids in the
    meantime. Only the journal knows whether a reserved id was used and pruned.
    """
    union = _union(_active_parents(layout, parent_ids))
    if not children:
        raise InvalidLayoutChange(
            f"{_name_segments(parent_ids)} would be sealed without a successor; give children"
        )
    pieces = sorted(plan.hash_range for plan in children)
    starts, ends = [piece.start for piece in pieces], [piece.end for piece in pieces]
    if starts != [union.start, *(end + 1 for end in ends[:-1])] or ends[-1] != union.end:
        ranges = ", ".join(str(plan.hash_range) for plan in children)
        raise InvalidLayoutChange(
            f"children {ranges} do not tile {union}, the range of {_name_segments(parent_ids)}; "
            "cut the whole range without gap or overlap"
        )
    _check_children(layout, parent_ids, children)


def _check_children(layout: SegmentGraph, parent_ids: Sequence[int], children: Sequence[ChildPlan]) -> None:
    """Raise InvalidLayoutChange unless the ids of the children are different, unused and at most `MOST`, and the
    bucket boundaries of each child ascend strictly within 1..65535. An id is unused if no segment of the layout has
    the id and the id is higher than every parent's id. The ranges of the children are not checked here. There must be
    at least one parent and one child.
    """
    child_ids = [plan.segment_id for plan in children]
    if max(child_ids) > MOST:
        raise InvalidLayoutChange(
            f"child ids {shown(child_ids)} of {_name_segments(parent_ids)} exceed {MOST}, the highest possible id; reserve lower ids"
        )
    youngest = max(parent_ids)
    used = [i for i in child_ids if i in layout.segments or i <= youngest]
    if used or len(set(child_ids)) < len(child_ids):
        raise InvalidLayoutChange(
            f"child ids {shown(child_ids)} of {_name_segments(parent_ids)} are already in use; "
            f"reserve ids from {layout.next_segment_id} up"
        )
    for plan in children:
        if not entry_buckets.are_splits(plan.bucket_splits):
            raise InvalidLayoutChange(
                f"bucket splits {shown(plan.bucket_splits)} of child {shown(plan.segment_id)} are not boundaries; "
                "give ascending hashes within 1..65535"
            )


def plan_split(
    layout: SegmentGraph,
    segment_id: int,
    at: int | Sequence[int] | None = None,
    *,
    buckets: int | None = None,
) -> Reshape:
    """Return the plan of a split of one segment; the layout is unchanged. `at` is the first hash of the second child,
    or the first hashes of all children except the first, ascending; None cuts at the midpoint.

    Each child gets `buckets` entry buckets of equal width, which do not follow the parent's boundaries. With None,
    each of k children of a parent with N buckets gets N // k buckets, but at least 1, as in Pulsar for k = 2.

    Raises SegmentNotFound for an unknown segment. Raises InvalidLayoutChange for a sealed segment, a range of one
    hash, an empty list of cut points, and cut points that do not ascend within the range.
    """
    parent = _active(layout, segment_id)
    _demand_divisible(parent, 2)
    if at is None:
        points: Sequence[int] = (parent.hash_range.midpoint,)
    else:
        points = (at,) if isinstance(at, int) else tuple(at)
    if not points:
        raise InvalidLayoutChange(f"split of segment {parent} has no cut point; give at least one or None")
    try:
        ranges = parent.hash_range.cut_many(points)
    except InvalidRange as error:
        raise InvalidLayoutChange(
            f"segment {parent} cannot be split at {_hexadecimal(points)}: {error}"
        ) from error
    if buckets is None:
        buckets = entry_buckets.inherited_on_split(parent.bucket_count, len(ranges))
    return Reshape(ReshapeKind.SPLIT, (segment_id,), _children(layout, ranges, buckets))


def plan_equal_split(layout: SegmentGraph, segment_id: int, parts: int) -> Reshape:
    """Return the plan of a split 1 → `parts` into widths that differ by at most one; a power of two gives the same
    ranges as repeated halving. The children get entry buckets as in `plan_split`. Raises SegmentNotFound. Raises
    InvalidLayoutChange for a sealed segment, for fewer than 2 parts, and for more parts than the range has hashes.
    """
    parent = _active(layout, segment_id)
    if parts < 2:
        raise InvalidLayoutChange(
            f"segment {parent} cannot be split into {shown(parts)} parts; give at least 2"
        )
    _demand_divisible(parent, parts)
    return plan_split(layout, segment_id, parent.hash_range.equal_cuts(parts))


def plan_merge(layout: SegmentGraph, a: int, b: int, max_buckets: int = DEFAULT_MAX_BUCKETS) -> Reshape:
    """Return the plan of a merge 2 → 1 over adjacent segments. The child lists its parents in the order given, as
    in Pulsar, and gets the sum of their entry buckets, at most `max_buckets`. Raises SegmentNotFound, or
    InvalidLayoutChange for sealed segments and for segments that are not adjacent.
    """
    left, right = _active(layout, a), _active(layout, b)
    if not left.hash_range.is_adjacent_to(right.hash_range):
        raise InvalidLayoutChange(f"segments {left} and {right} are not adjacent; merge neighbours only")
    buckets = entry_buckets.merged(left.bucket_count, right.bucket_count, max_buckets)
    joined = left.hash_range.join(right.hash_range)
    return Reshape(ReshapeKind.MERGE, (a, b), _children(layout, [joined], buckets))


def plan_rebucket(
    layout: SegmentGraph, segment_id: int, bucket_count: int, max_buckets: int = DEFAULT_MAX_BUCKETS
) -> Reshape:
    """Return the plan of a rebucket 1 → 1 over the same range with `bucket_count` buckets of equal width. Raises
    SegmentNotFound, or InvalidLayoutChange for a sealed segment, a count outside 1..`max_buckets` (at most 65536),
    and boundaries that the segment has already.
    """
    parent = _active(layout, segment_id)
    limit = min(max_buckets, RING_SIZE)  # each bucket needs at least one hash
    if not 1 <= bucket_count <= limit:
        raise InvalidLayoutChange(
            f"segment {parent} cannot have {shown(bucket_count)} buckets; bucketCount must be in [1, {shown(limit)}]"
        )
    children = _children(layout, [parent.hash_range], bucket_count)
    if children[0].bucket_splits == parent.bucket_splits:
        raise InvalidLayoutChange(
            f"segment {parent} has these {bucket_count} buckets already; choose another count"
        )
    return Reshape(ReshapeKind.REBUCKET, (segment_id,), children)


def plan_heal(layout: SegmentGraph, segment_id: int) -> Reshape:
    """Return the plan of a repair 1 → 1 with the same range and buckets, for a segment whose log another program
    terminated. Raises SegmentNotFound, or InvalidLayoutChange for a sealed segment.
    """
    parent = _active(layout, segment_id)
    child = ChildPlan(layout.next_segment_id, parent.hash_range, parent.bucket_splits)
    return Reshape(ReshapeKind.HEAL, (segment_id,), (child,))


def plan_recut(
    layout: SegmentGraph,
    parent_ids: Sequence[int],
    cut_points: Sequence[int],
    max_buckets: int = DEFAULT_MAX_BUCKETS,
    *,
    buckets: int | None = None,
) -> Reshape:
    """Return the plan of a recut n → m: the union of adjacent segments with other boundaries; without a cut point
    the segments are joined into one.

    Each child gets `buckets` entry buckets; None: the parents' buckets divided equally, at least 1 and at most
    `max_buckets` per child. Raises SegmentNotFound, or InvalidLayoutChange for no segments, for segments that are
    sealed, repeated or not adjacent, for cut points that do not ascend within the union, and for cut points that leave
    the ranges unchanged.
    """
    parents = _active_parents(layout, parent_ids)
    union = _union(parents)
    try:
        ranges = union.cut_many(cut_points)
    except InvalidRange as error:
        raise InvalidLayoutChange(
            f"{_name_segments(parent_ids)} cannot be cut at {_hexadecimal(cut_points)}: {error}"
        ) from error
    if ranges == tuple(sorted(parent.hash_range for parent in parents)):
        raise InvalidLayoutChange(
            f"{_name_segments(parent_ids)} are cut at {_hexadecimal(cut_points)} already; move a cut point"
        )
    if buckets is None:
        total = sum(parent.bucket_count for parent in parents)
        buckets = min(entry_buckets.inherited_on_split(total, len(ranges)), max_buckets)
    return Reshape(ReshapeKind.RECUT, tuple(parent_ids), _children(layout, ranges, buckets))


def plan_action(action: Decision, layout: SegmentGraph, *, max_buckets: int) -> Reshape:
    """Return the reshape that performs the action on this layout, for the autoscaler and for backtests alike. `max_buckets`: maximum number
    of entry buckets of a child of a merge, of a rebucket, or of a recut that does not state `buckets`. Raises SegmentNotFound for an
    unknown segment, and InvalidLayoutChange if the layout does not permit the action.
    """
    match action:
        case Split(segment_id, at):
            return plan_split(layout, segment_id, at or None, buckets=action.buckets)
        case Merge(left_id, right_id):
            return plan_merge(layout, left_id, right_id, max_buckets)
        case Rebucket(segment_id, bucket_count):
            return plan_rebucket(layout, segment_id, bucket_count, max_buckets)
        case Recut(segment_ids, at):
            return plan_recut(layout, segment_ids, at, max_buckets, buckets=action.buckets)


def _children(layout: SegmentGraph, ranges: Sequence[HashRange], bucket_count: int) -> tuple[ChildPlan, ...]:
    """Return a child for each range, in the order of `ranges`, with ids from the layout's next id on. Each child has
    `bucket_count` entry buckets of equal width.
    """
    splits = entry_buckets.equal_splits(bucket_count)
    return tuple(ChildPlan(i, r, splits) for i, r in enumerate(ranges, layout.next_segment_id))


def _active(layout: SegmentGraph, segment_id: int) -> Segment:
    """Return the segment with this id. Raises SegmentNotFound if there is none, InvalidLayoutChange if the segment is
    sealed.
    """
    segment = layout.segment(segment_id)
    if not segment.is_active:
        raise InvalidLayoutChange(
            f"segment {segment} was sealed at epoch {segment.sealed_epoch}; "
            f"act on its active successors (children {list(segment.child_ids)})"
        )
    return segment


def _active_parents(layout: SegmentGraph, parent_ids: Sequence[int]) -> list[Segment]:
    """Return the segments with these ids, in this order. Raises InvalidLayoutChange for an empty list, a repeated id
    or a sealed segment, and SegmentNotFound for an unknown segment.
    """
    if not parent_ids or len(set(parent_ids)) < len(parent_ids):
        raise InvalidLayoutChange(f"parents {shown(list(parent_ids))} must be one or more different segments")
    return [_active(layout, segment_id) for segment_id in parent_ids]


def _union(parents: Sequence[Segment]) -> HashRange:
    """Return the range that the parents cover together; they may be in any order. Raises InvalidLayoutChange if two
    parents leave a gap or overlap.
    """
    first, *successors = sorted(parents, key=lambda segment: segment.hash_range)
    union = first.hash_range
    for successor in successors:
        if not union.is_adjacent_to(successor.hash_range):
            raise InvalidLayoutChange(f"segments {first} to {successor} leave a gap; reshape neighbours only")
        union = union.join(successor.hash_range)
    return union


def _demand_divisible(parent: Segment, parts: int) -> None:
    """Raise InvalidLayoutChange if the segment covers fewer than `parts` hashes."""
    if parent.hash_range.width < parts:
        raise InvalidLayoutChange(
            f"segment {parent} covers {parent.hash_range.width} hash(es) and cannot be split into {shown(parts)}; "
            "leave it whole and add entry buckets instead"
        )


def _hexadecimal(points: Sequence[int]) -> str:
    """Return the hashes as text, in hexadecimal and separated by commas: `0x4000, 0x8000`."""
    return ", ".join(map(hexadecimal, points))


def _name_segments(segment_ids: Sequence[int]) -> str:
    return f"segment(s) {', '.join(map(shown, segment_ids))}"
