"""Segments that no cut can relieve: nearly all of their load is on one hash, or their latest cuts had no effect.

The observations after each cut are counted as strikes in `domain.load_memory`.
"""

from __future__ import annotations

from controller.domain.profiles.evaluation_context import EvaluationContext
from controller.domain.segment import Segment

MOST_STRIKES = 2
"""Number of consecutive cuts that left nearly all of the load in one part, after which a segment without a key
histogram is left unchanged for `STOP_TICKS`.
"""
STOP_TICKS = 60
"""Ticks after its creation for which a segment with `MOST_STRIKES` ineffective cuts is left unchanged."""
ON_ONE_HASH = 0.95
"""Share of a segment's load on one hash from which the segment is treated like that hash."""


def is_on_one_hash(context: EvaluationContext, segment: Segment) -> bool:
    """Return True if the segment's range has one hash, or if its key histogram has one bin for each hash and shows nearly
    all of the load (`ON_ONE_HASH`) on one hash. A hot bin of several hashes does not count: a cut isolates the bin, and
    the segment of the bin is evaluated again.
    """
    if segment.hash_range.width == 1:
        return True
    sketch = context.situation.sketches.get(segment.segment_id, ())
    return len(sketch) == segment.hash_range.width and max(sketch) >= ON_ONE_HASH * sum(sketch) > 0


def next_cut_at(context: EvaluationContext, segment: Segment, stop_ms: int) -> int | None:
    """Return the time (milliseconds since the Unix epoch) until which the segment is left unchanged because its latest
    `MOST_STRIKES` cuts had no effect: `stop_ms` after its creation. None if the segment may be cut now, as always with
    a key histogram: it shows where a cut divides the load.
    """
    stopped_until = segment.created_at_ms + stop_ms
    had_ineffective_cuts = context.situation.strikes.get(segment.segment_id, 0) >= MOST_STRIKES
    has_histogram = segment.segment_id in context.situation.sketches
    is_stopped = had_ineffective_cuts and not has_histogram and context.now < stopped_until
    return stopped_until if is_stopped else None
