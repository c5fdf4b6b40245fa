"""Derives the changes of a layout that a broker keeps, from two consecutive readings.

Each segment records the epochs in which it was created and sealed, so most changes between two readings can be
derived epoch by epoch. A segment that was created and pruned in between left no trace, and its epochs are a gap. The
callers read the broker and write the rows.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from controller.domain.errors import Conflict
from controller.domain.hash_range import HashRange
from controller.domain.reshape import ReshapeKind
from controller.domain.segment import Segment
from controller.domain.segment_graph import SegmentGraph


@dataclass(frozen=True, slots=True)
class LayoutStep:
    """The change that led to epoch `epoch`: the ids of the segments that it sealed and created, and the kind of reshape;
    None if the kind cannot be derived from these segments.
    """

    epoch: int
    kind: ReshapeKind | None
    sealed_ids: tuple[int, ...]
    created_ids: tuple[int, ...]


def steps_between(before: SegmentGraph, after: SegmentGraph) -> tuple[LayoutStep, ...]:
    """Return the changes that led from the layout `before` to the layout `after` of the same topic, in the order of
    their epochs. The changes are derived from the segments of `after`. An epoch therefore has no step if every
    segment that was sealed or created in the epoch has been pruned. The result is empty if both layouts have the same
    epoch.

    Raises Conflict if the epoch of `after` is lower: the topic was deleted on the broker and created again.
    """
    if after.epoch < before.epoch:
        raise Conflict(
            f"the broker's layout is at epoch {after.epoch}, but epoch {before.epoch} was read before: the topic was "
            "deleted and created again on the broker; detach the topic and attach it again"
        )
    sealed: defaultdict[int, list[Segment]] = defaultdict(list)
    created: defaultdict[int, list[Segment]] = defaultdict(list)
    for segment in sorted(after.segments.values(), key=lambda s: s.segment_id):
        if segment.created_epoch > before.epoch:
            created[segment.created_epoch].append(segment)
        if segment.sealed_epoch is not None and segment.sealed_epoch > before.epoch:
            sealed[segment.sealed_epoch].append(segment)
    return tuple(
        LayoutStep(
            epoch,
            kind_of(sealed[epoch], created[epoch]),
            tuple(segment.segment_id for segment in sealed[epoch]),
            tuple(segment.segment_id for segment in created[epoch]),
        )
        for epoch in sorted(sealed.keys() | created.keys())
    )


def kind_of(sealed: Sequence[Segment], created: Sequence[Segment]) -> ReshapeKind | None:
    """Return the kind of the reshape that sealed the segments `sealed` and created the segments `created`. One into
    one is REBUCKET (a repair cannot be distinguished from a rebucket), one into several is SPLIT, several into one is
    MERGE, and several into several is RECUT. The result is None if one of the two sequences is empty, or if they
    cover different numbers of hashes.
    """
    if not sealed or not created or _widths(sealed) != _widths(created):
        return None
    if len(sealed) == 1:
        return ReshapeKind.REBUCKET if len(created) == 1 else ReshapeKind.SPLIT
    return ReshapeKind.MERGE if len(created) == 1 else ReshapeKind.RECUT


def last_reshape_times(
    layout: SegmentGraph, since: SegmentGraph | None = None, besides: Collection[int] = ()
) -> dict[ReshapeKind, int]:
    """Return the time of the last reshape of each kind, in milliseconds since the Unix epoch; a kind without a
    reshape is left out. The time of a reshape is the creation time of a child, as a new leader in Pulsar derives its
    cooldowns.

    Only segments that were created after the epoch of the layout `since` count (None: all segments). Segments whose
    ids are in `besides`, and segments whose creation time is unknown (0), do not count.

    Each child is judged by its own parents (`_kind_of_origin`), so a recut may count as MERGE and as SPLIT, and a
    repair counts as REBUCKET; the result never has RECUT or HEAL. If the child names no parent, because the parents
    were pruned, the kind is derived from the segments of `since`. If that is not possible either, several children of
    one epoch count as a SPLIT, and a single child does not count. Pulsar forgets a reshape whose parents were pruned.
    """
    created_per_epoch = Counter(segment.created_epoch for segment in layout.segments.values())
    last_times: dict[ReshapeKind, int] = {}
    for segment in layout.segments.values():
        was_known = since is not None and segment.created_epoch <= since.epoch
        if was_known or segment.segment_id in besides or segment.created_at_ms <= 0:
            continue
        kind = _kind_of_origin(layout, segment, since)
        if kind is None and segment.created_epoch > 0 and created_per_epoch[segment.created_epoch] > 1:
            kind = ReshapeKind.SPLIT
        if kind is not None:
            last_times[kind] = max(last_times.get(kind, 0), segment.created_at_ms)
    return last_times


def _kind_of_origin(layout: SegmentGraph, segment: Segment, since: SegmentGraph | None) -> ReshapeKind | None:
    """Return the kind of reshape that created the segment, from this segment and its parents alone, or None if the kind
    cannot be derived, as for a segment of the first layout. Never RECUT or HEAL.

    Several parents: MERGE. One parent: REBUCKET for an equal range, SPLIT if the parent contains the segment or is
    missing in the layout, otherwise MERGE. If the segment names no parent, the active segments of `since` that overlap
    the segment replace the parents.
    """
    if len(segment.parent_ids) > 1:
        return ReshapeKind.MERGE
    if segment.parent_ids:
        parent = layout.segments.get(segment.parent_ids[0])
        return (
            ReshapeKind.SPLIT if parent is None else _kind_from_ranges(parent.hash_range, segment.hash_range)
        )
    active = () if since is None else since.active
    before = [s.hash_range for s in active if s.hash_range.overlaps(segment.hash_range)]
    if len(before) > 1:
        return ReshapeKind.MERGE
    return _kind_from_ranges(before[0], segment.hash_range) if before else None


def _kind_from_ranges(parent: HashRange, child: HashRange) -> ReshapeKind:
    """Return the kind of a reshape from the ranges of a child and of the only parent that is known: REBUCKET for equal
    ranges, SPLIT if the parent contains the child, otherwise MERGE, because another parent must have been pruned.
    """
    if parent == child:
        return ReshapeKind.REBUCKET
    is_part = parent.start <= child.start and child.end <= parent.end
    return ReshapeKind.SPLIT if is_part else ReshapeKind.MERGE  # one of the merge's two parents was pruned


def have_children_taken_over(
    layout: SegmentGraph, parent_ids: Sequence[int], ranges: Sequence[HashRange]
) -> bool:
    """Return True if the layout that the broker keeps shows that the reshape is done: all segments `parent_ids` were
    sealed in one epoch, and the children created in this epoch have exactly the ranges `ranges`, in any order. Return
    False if all parents are ACTIVE, so that the reshape may still be done.

    Raises Conflict in every other case, in which the reshape can no longer be done: another reshape sealed a parent,
    only some parents are sealed, or a parent or a child is no longer in the layout.
    """
    parents = [layout.segments.get(i) for i in parent_ids]
    if all(parent is not None and parent.is_active for parent in parents):
        return False
    epochs = {parent.sealed_epoch for parent in parents if parent is not None}
    child_ranges = sorted(
        s.hash_range for s in layout.segments.values() if s.created_epoch in epochs and s.parent_ids
    )
    if None in parents or None in epochs or len(epochs) > 1 or child_ranges != sorted(ranges):
        names = ", ".join(map(str, parent_ids))
        raise Conflict(
            f"another program has reshaped segment(s) {names} on the broker; "
            f"decide on the layout of epoch {layout.epoch}"
        )
    return True


def _widths(segments: Sequence[Segment]) -> int:
    """Return the number of hashes that the segments cover in total."""
    return sum(segment.hash_range.width for segment in segments)
