"""What the rivals share: a segment's load as one number, and room for more segments."""

from __future__ import annotations

from collections.abc import Sequence

from controller.domain.decision import Decision, Lane, Recut, Refusal, RefusalReason, Split
from controller.domain.load import LoadStats
from controller.domain.segment import Segment
from controller.domain.situation import Situation


def use(stats: LoadStats, capacity: LoadStats) -> float:
    """The load in capacities: the largest of the four rates ÷ thresholds."""
    return max(rate / limit for rate, limit in zip(stats.rates, capacity.rates, strict=True))


def seen_since_creation(situation: Situation, segment: Segment, tick_ms: int) -> Sequence[LoadStats]:
    """The segment's own ticks, the newest last, without those handed down to it by its parents."""
    ticks = situation.recent_loads.get(segment.segment_id, ())
    own = (situation.now - segment.created_at_ms) // tick_ms
    return ticks[max(0, len(ticks) - own) :]


class Room:
    """How many segments may still be added, with what is in flight counted as done."""

    def __init__(self, situation: Situation) -> None:
        added = sum(live.child_count - len(live.parent_ids) for live in situation.in_flight)
        self.cap = situation.policy.max_segments
        self.segments = len(situation.layout.active) + max(0, added)

    def take(self, more: int) -> int:
        """As many of `more` as there is room for; they count from now on."""
        granted = max(0, min(more, self.cap - self.segments))
        self.segments += granted
        return granted

    def refusal(self, segment_id: int) -> Refusal:
        """That the cap is the reason."""
        return Refusal(
            segment_id, Lane.LOAD, RefusalReason.AT_MAX_SEGMENTS, "segments", self.segments, self.cap
        )


def busy(situation: Situation) -> frozenset[int]:
    """The segments in a reshape under way."""
    return frozenset(i for live in situation.in_flight for i in live.parent_ids)


def equal_split(segment: Segment, parts: int, reason: str) -> Split:
    """Into so many equal widths, or as many as it has hashes."""
    parts = min(parts, segment.hash_range.width)
    return Split(segment.segment_id, segment.hash_range.equal_cuts(parts), reason)


def joined(segments: Sequence[Segment], reason: str) -> Decision:
    """Neighbours into one."""
    return Recut(tuple(segment.segment_id for segment in segments), (), reason)
