"""The drain barrier: a segment may be read only when all its ancestors are drained.

`store/topics/readable_segments.py` and the view `inspect.assignments` apply the same rule in SQL, so that the program
need not read all segments of a topic with a long history; a test compares both with `candidates`.
"""

from __future__ import annotations

from collections.abc import Collection

from controller.domain.segment import Segment
from controller.domain.segment_graph import SegmentGraph


def candidates(
    layout: SegmentGraph, drained: Collection[int], *, parents_block: bool = True
) -> tuple[Segment, ...]:
    """Return the segments that may be read, by range and id: the unread segments whose ancestors are all drained.

    `drained` holds ids of sealed segments; an ACTIVE segment is never finished. A pruned ancestor counts as drained.
    Without `parents_block` a segment does not wait for its ancestors; this is for readers that prefer a short delay
    to the order of a key.
    """
    done = frozenset(drained)
    free = clear(layout, done) if parents_block else layout.segments
    ready = [layout.segments[i] for i in free if layout.segments[i].is_active or i not in done]
    return tuple(sorted(ready, key=lambda s: (s.hash_range.start, s.hash_range.end, s.segment_id)))


def clear(layout: SegmentGraph, done: Collection[int]) -> frozenset[int]:
    """Return the segments whose ancestors are all drained. One pass in the order of the ids suffices, because a parent's
    id is lower than its children's.
    """
    found: set[int] = set()
    for segment_id in sorted(layout.segments):
        present = [i for i in layout.segments[segment_id].parent_ids if i in layout.segments]
        if all(i in found and i in done for i in present):
            found.add(segment_id)
    return frozenset(found)
