"""What happened to a layout that a broker keeps, between the last reading and this one.

Each segment carries the epochs in which it was made and sealed, so most of what lies between two readings can be told
epoch by epoch; what was made and pruned in between left no trace, and its epochs are a gap. The callers read the broker
and write the rows.
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
    """One epoch that can be told: what was sealed, what was made, and what people call it (None: unclear)."""

    epoch: int
    kind: ReshapeKind | None
    sealed_ids: tuple[int, ...]
    created_ids: tuple[int, ...]


def steps_between(before: SegmentGraph, after: SegmentGraph) -> tuple[LayoutStep, ...]:
    """The steps after `before`'s epoch, by epoch; gaps between them are what nothing is known of.

    Raises Conflict when `after` is the older one: the topic was deleted on the broker and made again.
    """
    if after.epoch < before.epoch:
        raise Conflict(
            f"the broker's layout is at epoch {after.epoch}, but epoch {before.epoch} was seen before: the topic was "
            "made again there; detach it and attach it anew"
        )
    sealed: defaultdict[int, list[Segment]] = defaultdict(list)
    created: defaultdict[int, list[Segment]] = defaultdict(list)
    for segment in sorted(after.segments.values(), key=lambda one: one.segment_id):
        if segment.created_epoch > before.epoch:
            created[segment.created_epoch].append(segment)
        if segment.sealed_epoch is not None and segment.sealed_epoch > before.epoch:
            sealed[segment.sealed_epoch].append(segment)
    return tuple(
        LayoutStep(
            epoch,
            kind_of(sealed[epoch], created[epoch]),
            tuple(one.segment_id for one in sealed[epoch]),
            tuple(one.segment_id for one in created[epoch]),
        )
        for epoch in sorted(sealed.keys() | created.keys())
    )


def kind_of(sealed: Sequence[Segment], created: Sequence[Segment]) -> ReshapeKind | None:
    """What the act was, from its two sides; None where one of them is no longer there to be seen."""
    if not sealed or not created or _widths(sealed) != _widths(created):
        return None
    if len(sealed) == 1:
        return ReshapeKind.REBUCKET if len(created) == 1 else ReshapeKind.SPLIT
    return ReshapeKind.MERGE if len(created) == 1 else ReshapeKind.RECUT


def acts_seen(
    layout: SegmentGraph, since: SegmentGraph | None = None, besides: Collection[int] = ()
) -> dict[ReshapeKind, int]:
    """When the last act of each kind was, in milliseconds since the Unix epoch; a kind without one is left out.

    Read, as a new leader in Pulsar reads its cooldowns, from when segments were made: those made after `since` and not
    `besides`. Where parents were pruned, Pulsar forgets the act. Here it is told from the layout known before, or from
    there being several children of one epoch.
    """
    made_in = Counter(segment.created_epoch for segment in layout.segments.values())
    seen: dict[ReshapeKind, int] = {}
    for segment in layout.segments.values():
        is_known = since is not None and segment.created_epoch <= since.epoch
        if is_known or segment.segment_id in besides or segment.created_at_ms <= 0:
            continue
        kind = _act_behind(layout, segment, since)
        if kind is None and segment.created_epoch > 0 and made_in[segment.created_epoch] > 1:
            kind = ReshapeKind.SPLIT
        if kind is not None:
            seen[kind] = max(seen.get(kind, 0), segment.created_at_ms)
    return seen


def _act_behind(layout: SegmentGraph, segment: Segment, since: SegmentGraph | None) -> ReshapeKind | None:
    """What made the segment; None for one of the first layout, and where that cannot be told."""
    if len(segment.parent_ids) > 1:
        return ReshapeKind.MERGE
    if segment.parent_ids:
        parent = layout.segments.get(segment.parent_ids[0])
        return ReshapeKind.SPLIT if parent is None else _from_range(parent.hash_range, segment.hash_range)
    active = () if since is None else since.active
    before = [one.hash_range for one in active if one.hash_range.overlaps(segment.hash_range)]
    if len(before) > 1:
        return ReshapeKind.MERGE
    return _from_range(before[0], segment.hash_range) if before else None


def _from_range(parent: HashRange, child: HashRange) -> ReshapeKind:
    if parent == child:
        return ReshapeKind.REBUCKET
    is_part = parent.start <= child.start and child.end <= parent.end
    return ReshapeKind.SPLIT if is_part else ReshapeKind.MERGE  # of a merge's two parents one was pruned


def has_taken_over(layout: SegmentGraph, parent_ids: Sequence[int], ranges: Sequence[HashRange]) -> bool:
    """Whether the layout shows the reshape done: the parents sealed in one epoch, for children of these ranges.

    Raises Conflict when one of the parents is sealed by something else, or gone: it can never be done now.
    """
    parents = [layout.segments.get(i) for i in parent_ids]
    if all(parent is not None and parent.is_active for parent in parents):
        return False
    epochs = {parent.sealed_epoch for parent in parents if parent is not None}
    made = sorted(
        s.hash_range for s in layout.segments.values() if s.created_epoch in epochs and s.parent_ids
    )
    if None in parents or None in epochs or len(epochs) > 1 or made != sorted(ranges):
        names = ", ".join(map(str, parent_ids))
        raise Conflict(
            f"segment(s) {names} were reshaped on the broker by somebody else; "
            f"decide on the layout of epoch {layout.epoch}"
        )
    return True


def _widths(segments: Sequence[Segment]) -> int:
    return sum(segment.hash_range.width for segment in segments)
