"""The drain barrier: a segment may be read only when everything it descends from is drained.

`store/topics/readable_segments.py` and the view `inspect.assignments` apply the same rule in SQL, so that a topic with a long history is
not read whole; a test compares both with `candidates`.
"""

from __future__ import annotations

from collections.abc import Collection

from controller.domain.segment import Segment
from controller.domain.segment_graph import SegmentGraph


def candidates(
    layout: SegmentGraph, drained: Collection[int], *, parents_block: bool = True
) -> tuple[Segment, ...]:
    """Segments that may be read now, by range and id: unread ones whose ancestors are all drained.

    `drained` names sealed segments; an ACTIVE one is never finished. A pruned ancestor counts as drained. Without
    `parents_block` nothing waits for its ancestors: for readers to whom lag matters more than the order of a key.
    """
    done = frozenset(drained)
    free = clear(layout, done) if parents_block else layout.segments
    ready = [layout.segments[i] for i in free if layout.segments[i].is_active or i not in done]
    return tuple(sorted(ready, key=lambda s: (s.hash_range.start, s.hash_range.end, s.segment_id)))


def clear(layout: SegmentGraph, done: Collection[int]) -> frozenset[int]:
    """Return the segments whose ancestors are all drained. One pass by id, since a parent's id is below its children's."""
    found: set[int] = set()
    for segment_id in sorted(layout.segments):
        present = [i for i in layout.segments[segment_id].parent_ids if i in layout.segments]
        if all(i in found and i in done for i in present):
            found.add(segment_id)
    return frozenset(found)
