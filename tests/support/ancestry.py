"""Reference for Pulsar's count of the merges above a segment, computed one segment at a time."""

from __future__ import annotations

from controller.domain.segment_graph import SegmentGraph


def merge_depth_by_ancestry(layout: SegmentGraph, segment_id: int) -> int:
    """Return the number of segments with two or more parents, among the segment and its present ancestors."""
    among = (segment_id, *layout.ancestors(segment_id))
    return sum(len(layout.segments[i].parent_ids) >= 2 for i in among)
