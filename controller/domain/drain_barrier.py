"""The drain barrier: a segment may be read only when all its ancestors are drained; and the gates that may be opened by it. Pure; performs
no I/O.

`store/topics/readable_segments.py` and the view `inspect.assignments` apply the same rule in SQL, so that the
program need not read all segments of a topic with a long history. A test compares both with `candidates`.

A gate holds the messages of a segment back from one subscription of standard consumers. The gate may be opened when every ancestor of the
segment is drained for that subscription: the rule that Cleave's own consumers follow.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from controller.domain.segment import Segment
from controller.domain.segment_graph import SegmentGraph


def candidates(
    layout: SegmentGraph, drained: Collection[int], *, parents_block: bool = True
) -> tuple[Segment, ...]:
    """Return the segments that may be read, sorted by range and id: the segments that are not drained and whose
    ancestors are all drained. The result is empty if there are none.

    `drained` contains ids of drained segments of one subscription; the id of an ACTIVE segment has no effect there. A
    pruned ancestor counts as drained. The ancestors of a pruned segment count as drained too, unless another path of
    the layout leads to them. Without `parents_block` a segment does not wait for its ancestors; this serves readers
    that prefer a short delay to the order of a key.
    """
    drained_ids = frozenset(drained)
    free_ids = clear(layout, drained_ids) if parents_block else layout.segments
    ready = [layout.segments[i] for i in free_ids if layout.segments[i].is_active or i not in drained_ids]
    return tuple(sorted(ready, key=lambda s: (s.hash_range.start, s.hash_range.end, s.segment_id)))


def clear(layout: SegmentGraph, drained: Collection[int]) -> frozenset[int]:
    """Return the ids of the segments whose ancestors are all drained or pruned, whether or not the segment itself is
    drained. `drained` contains the ids of drained segments; other ids in `drained` have no effect. The ancestors of a
    pruned segment count as drained too, unless another path of the layout leads to them.
    """
    clear_ids: set[int] = set()
    # One pass in ascending order suffices, because the id of a parent is lower than the ids of its children.
    for segment_id in sorted(layout.segments):
        parents = [i for i in layout.segments[segment_id].parent_ids if i in layout.segments]
        if all(i in clear_ids and i in drained for i in parents):
            clear_ids.add(segment_id)
    return frozenset(clear_ids)


@dataclass(frozen=True, slots=True)
class GatePlan:
    """The shut gates of one subscription that may be opened, and the segments that hold the others back, by segment
    id, ascending.
    """

    may_open: tuple[int, ...]
    """Shut gates of segments whose ancestors are all drained, and of segments that are absent from the layout."""
    to_drain: tuple[int, ...]
    """Sealed segments that hold a shut gate back and can be drained now: every ancestor of theirs is drained, and their own gate is
    not shut.
    """


def plan_gates(layout: SegmentGraph, drained: Collection[int], shut: Collection[int]) -> GatePlan:
    """Return which of the `shut` gates of one subscription may be opened, and which sealed segments consumers have to
    drain next before the other gates can be opened. Nothing is opened.

    `layout` has every segment that the subscription has not drained, and the descendants of these segments. A segment
    that is absent from `layout` counts as drained, and so do its ancestors; its gate may be opened. `drained`: ids of
    the sealed segments that the subscription has drained. `shut`: ids of the segments whose gate is shut.
    """
    drained_ids, closed_ids = frozenset(drained), frozenset(shut)
    unblocked = clear(layout, drained_ids)
    blocked = closed_ids & (layout.segments.keys() - unblocked)
    ancestors = layout.ancestors_of(parent for i in blocked for parent in layout.segments[i].parent_ids)
    return GatePlan(
        tuple(sorted(closed_ids - blocked)), tuple(sorted((ancestors & unblocked) - drained_ids - closed_ids))
    )
