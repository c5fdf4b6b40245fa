"""Functions that the rivals share: a segment's load as one number, and the number of segments that may be added."""

from __future__ import annotations

from collections.abc import Sequence

from controller.domain.decision import Decision, Lane, Recut, Refusal, RefusalReason, Split
from controller.domain.evaluation_input import EvaluationInput
from controller.domain.load_record import LoadStats
from controller.domain.segment import Segment


def use(stats: LoadStats, capacity: LoadStats) -> float:
    """Return the load in capacities: the largest of the four rates, each divided by its rate in `capacity` (above 0)."""
    return max(rate / limit for rate, limit in zip(stats.rates, capacity.rates, strict=True))


def own_ticks(situation: EvaluationInput, segment: Segment, tick_ms: int) -> Sequence[LoadStats]:
    """Return the remembered loads that the segment itself had since its creation, the newest last, without those inherited
    from its parents; empty without a measurement. `tick_ms`: milliseconds between two of them.
    """
    ticks = situation.recent_loads.get(segment.segment_id, ())
    count = (situation.now - segment.created_at_ms) // tick_ms
    return ticks[max(0, len(ticks) - count) :]


class Room:
    """The number of segments that may still be added. Running reshapes count as done if together they add segments;
    otherwise they do not count.
    """

    def __init__(self, situation: EvaluationInput) -> None:
        added = sum(live.child_count - len(live.parent_ids) for live in situation.in_flight)
        self.cap = situation.policy.max_segments
        self.segments = len(situation.layout.active) + max(0, added)

    def split(self, segment: Segment, parts: int, reason: str) -> Split | None:
        """Return a split into `parts` equal widths, or fewer if the limit of segments or the segment's number of hashes allows
        only fewer; None if they allow only one. The segments that the split adds count from then on.
        """
        parts = min(parts, segment.hash_range.width, 1 + self.cap - self.segments)
        if parts < 2:
            return None
        self.segments += parts - 1
        return equal_split(segment, parts, reason)

    def refusal(self, segment: Segment) -> Refusal:
        """Return the refusal of a segment for which `split` returns None: it has one hash, or the topic has reached
        the limit of segments.
        """
        width = segment.hash_range.width
        if width == 1:
            return Refusal(segment.segment_id, Lane.LOAD, RefusalReason.WIDTH_ONE, "width", width, 2)
        return Refusal(
            segment.segment_id, Lane.LOAD, RefusalReason.AT_MAX_SEGMENTS, "segments", self.segments, self.cap
        )


def busy(situation: EvaluationInput) -> frozenset[int]:
    """Return the ids of the segments in a running reshape."""
    return frozenset(i for live in situation.in_flight for i in live.parent_ids)


def equal_split(segment: Segment, parts: int, reason: str) -> Split:
    """Return a split into `parts` equal widths, or as many as the segment has hashes if they are fewer. `parts` and the number
    of hashes must be at least 2, because a split without cut points stands for two halves.
    """
    parts = min(parts, segment.hash_range.width)
    return Split(segment.segment_id, segment.hash_range.equal_cuts(parts), reason)


def joined(segments: Sequence[Segment], reason: str) -> Decision:
    """Return the action that joins neighbours into one segment: a recut without a cut point."""
    return Recut(tuple(segment.segment_id for segment in segments), (), reason)
