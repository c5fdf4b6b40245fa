"""The invariants of a layout: the active segments tile the hash ring, and parents and children agree.

Building a layout checks nothing, so that a layout of a few hundred rows loads cheaply; data that may be wrong is checked
here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import pairwise

from controller.domain.entry_buckets import are_splits
from controller.domain.errors import InvariantViolated
from controller.domain.formatting import shown
from controller.domain.hash_range import MAX_HASH
from controller.domain.segment import Segment
from controller.domain.segment_graph import COUNTED_MERGES, SegmentGraph


def check_invariants(layout: SegmentGraph) -> None:
    """Raise InvariantViolated unless the layout is valid. The message names the first violated invariant and its
    values. A layout without segments, as a deleted topic has, is valid.

    In a valid layout, the ranges of the ACTIVE segments tile the ring. A parent and a child that are both present
    list each other and overlap. Ids, epochs, bucket boundaries and merge depths are consistent (`_check_state`,
    `_check_link`).
    """
    _check_tiling(layout)
    children = {key: frozenset(segment.child_ids) for key, segment in layout.segments.items()}
    parents = {key: frozenset(segment.parent_ids) for key, segment in layout.segments.items()}
    for key, segment in layout.segments.items():
        _demand(key == segment.segment_id, f"segment {segment} is stored under id {shown(key)}")
        _demand(
            key < layout.next_segment_id,
            f"segment id {shown(key)} >= next id {shown(layout.next_segment_id)}",
        )
        _check_state(layout, segment)
        for parent_id in segment.parent_ids:
            _check_link(layout, parent_id, segment, children)
        for child_id in children[key]:
            is_unlinked = child_id in parents and key not in parents[child_id]
            _demand(not is_unlinked, f"child {shown(child_id)} does not list parent {segment}")


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
