"""The drain barrier: a segment may be read only when all its ancestors are drained. Pure; performs no I/O.

`store/topics/readable_segments.py` and the view `inspect.assignments` apply the same rule in SQL, so that the
program need not read all segments of a topic with a long history. A test compares both with `candidates`.
"""

from __future__ import annotations

from collections.abc import Collection

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
