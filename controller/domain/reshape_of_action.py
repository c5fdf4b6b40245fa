"""Turns an action into the reshape that performs it, for the autoscaler and for backtests alike."""

from __future__ import annotations

from controller.domain import reshape
from controller.domain.decision import Decision, Merge, Rebucket, Recut, Split
from controller.domain.reshape import Reshape
from controller.domain.segment_graph import SegmentGraph


def plan(action: Decision, layout: SegmentGraph, *, max_buckets: int) -> Reshape:
    """Return the reshape that performs the action on this layout. `max_buckets`: maximum number of entry buckets of a
    child of a merge, of a rebucket, or of a recut that does not state `buckets`. Raises SegmentNotFound for an
    unknown segment, and InvalidLayoutChange if the layout does not permit the action.
    """
    match action:
        case Split(segment_id, at):
            return reshape.plan_split(layout, segment_id, at or None, buckets=action.buckets)
        case Merge(left_id, right_id):
            return reshape.plan_merge(layout, left_id, right_id, max_buckets)
        case Rebucket(segment_id, bucket_count):
            return reshape.plan_rebucket(layout, segment_id, bucket_count, max_buckets)
        case Recut(segment_ids, at):
            return reshape.plan_recut(layout, segment_ids, at, max_buckets, buckets=action.buckets)
