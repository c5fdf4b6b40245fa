"""The consumer lane of the profile `adaptive`: one plan for all consumers that have nothing to read.

A consumer needs a *place*: an entry bucket where consumers can share a segment, a whole segment where they cannot. When there are
fewer places than consumers, or fewer segments than consumers although the rate justifies more (`split_vs_rebucket_min_msg_rate_in` for
each), as few segments as possible are sealed, the busiest first, and their children serve all consumers in one act: segments as far as
the rate justifies them and the cap allows, entry buckets for the rest (PIP-486). Segments that the rate does not justify are made only
where entry buckets cannot serve everybody.

The first act is made at once. Consumers that register while it runs are collected until no more of them come, and served by a
second act. Acts for load delay nothing here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from controller.domain import entry_buckets
from controller.domain.decision import CONSUMER_COUNT, Decision, Lane, Rebucket, Refusal, RefusalReason, Split
from controller.domain.hash_range import RING_SIZE
from controller.domain.lanes.cooldowns import Pause
from controller.domain.lanes.ground import Ground
from controller.domain.load import LoadRecord
from controller.domain.segment import Segment

COLLECTING_MS = 500
"""After an act for consumers, the next one waits until no consumer has come or gone for so long,"""
LONGEST_COLLECTING_MS = 10_000
"""but no longer than this after the earlier act."""


def segments_wanted(ground: Ground) -> int:
    """Return how many segments consumers are to have: one each, where they can share segments only as far as the rate justifies."""
    if not ground.shared_buckets:
        return ground.consumers
    floor = ground.policy.split_vs_rebucket_min_msg_rate_in
    rate = sum(_rate(ground, record) for record in ground.records)
    justified = int(min(rate / floor, RING_SIZE)) if floor > 0 else RING_SIZE
    return min(ground.consumers, justified, ground.policy.max_segments)


def answer(ground: Ground) -> tuple[Decision, ...]:
    """Return the acts that give every consumer a place, or as many of them as the caps allow."""
    there = ground.count_places()
    if ground.consumers <= there and ground.segments_net >= segments_wanted(ground):
        return ()
    if ground.refuse_during(_collecting(ground), Lane.CONSUMER, None):
        return ()
    shares = _shares(ground, there)
    served = there + sum(share.parts * share.per_part - share.places for share in shares)
    if served < ground.consumers:
        _refuse_caps(ground, served)
    return tuple(act for share in shares if (act := share.act(ground)) is not None)


class _Candidate(NamedTuple):
    """A segment that may be sealed, the consumers that it serves, and its messages in per second."""

    segment: Segment
    places: int
    rate: float


@dataclass(frozen=True, slots=True)
class _Share:
    """What one segment becomes: `parts` children with `per_part` places each."""

    segment: Segment
    places: int
    parts: int
    per_part: int

    def act(self, ground: Ground) -> Decision | None:
        """Return the act; None where nothing would change."""
        segment, buckets = self.segment, entry_buckets.rounded_up(self.per_part)
        buckets = min(buckets, ground.most_places)
        if self.parts == 1:
            if buckets <= segment.bucket_count:
                return None
            return Rebucket(segment.segment_id, buckets, CONSUMER_COUNT)
        cuts = () if _is_midpoint(ground) else segment.hash_range.equal_cuts(self.parts)
        inherited = entry_buckets.inherited_on_split(segment.bucket_count, self.parts)
        given = buckets if ground.shared_buckets and buckets > inherited else None
        return Split(segment.segment_id, cuts, CONSUMER_COUNT, buckets=given)


def _shares(ground: Ground, there: int) -> list[_Share]:
    """Return what the fewest segments, the busiest first, have to become; every free segment where not all consumers can be served."""
    candidates = _candidates(ground)
    more = max(0, segments_wanted(ground) - ground.segments_net)
    more = min(more, sum(_most_parts(ground, candidates, is_justified=True)) - len(candidates))
    for is_justified in (True, False):
        for count in range(1, len(candidates) + 1):
            chosen = candidates[:count]
            others = there - sum(one.places for one in chosen)
            parts = sum(_most_parts(ground, chosen, is_justified=is_justified))
            if parts - count >= more and others + parts * ground.most_places >= ground.consumers:
                return _shared_out(ground, chosen, others, more)
    return _shared_out(ground, candidates, there - sum(one.places for one in candidates), more)


def _shared_out(ground: Ground, chosen: Sequence[_Candidate], others: int, more: int) -> list[_Share]:
    """Give the chosen segments `more` children that the rate justifies, and equal shares of the consumers that the other segments have no
    place for, within their bounds.
    """
    wanted = []
    for parts in _most_parts(ground, chosen, is_justified=True):
        wanted.append(1 + min(parts - 1, more))
        more -= wanted[-1] - 1
    room = ground.policy.max_segments - ground.segments_high - sum(wanted) + len(wanted)
    left, most, shares = ground.consumers - others, ground.most_places, []
    bounds = [_bound(ground, one) for one in chosen]
    for number, i in enumerate(sorted(range(len(chosen)), key=lambda i: bounds[i])):
        share = max(chosen[i].places, wanted[i], math.ceil(left / (len(chosen) - number)))
        unjustified = min(math.ceil(share / most), bounds[i], wanted[i] + max(0, room)) - wanted[i]
        parts = wanted[i] + max(0, unjustified)
        room -= parts - wanted[i]
        per_part = min(math.ceil(share / parts), most)
        left -= parts * per_part
        shares.append(_Share(chosen[i].segment, chosen[i].places, parts, per_part))
    return shares


def _bound(ground: Ground, one: _Candidate) -> int:
    """Return the most children that the data plane can make of the segment."""
    can = ground.situation.capabilities
    return max(1, min(2 if can.midpoint_only else max(2, can.max_children), one.segment.hash_range.width))


def _most_parts(ground: Ground, chosen: Sequence[_Candidate], *, is_justified: bool) -> list[int]:
    """Return the most children of each segment within the cap, the busiest first; `is_justified`: as far as the rate justifies them."""
    floor = ground.policy.split_vs_rebucket_min_msg_rate_in
    room = max(0, ground.policy.max_segments - ground.segments_high)
    found = []
    for one in chosen:
        most = _bound(ground, one)
        if is_justified and ground.shared_buckets and floor > 0:
            most = min(most, int(min(one.rate / floor, RING_SIZE)))
        parts = max(1, min(most, room + 1))
        room -= parts - 1
        found.append(parts)
    return found


def _candidates(ground: Ground) -> list[_Candidate]:
    """Return the segments that no operation and no proposal holds, the busiest first."""
    found = []
    for segment, record in zip(ground.active, ground.records, strict=True):
        if ground.refuse_busy(Lane.CONSUMER, segment.segment_id):
            continue
        rate = _rate(ground, record)
        if rate > 0:
            ground.wake_when_stale(record)
        found.append(_Candidate(segment, ground.places_of(segment.bucket_count), rate))
    return sorted(found, key=lambda one: (-one.rate, one.segment.segment_id))


def _rate(ground: Ground, record: LoadRecord | None) -> float:
    """Messages in per second; 0 where nothing fresh is known."""
    if record is None or ground.is_stale(record) or math.isnan(record.stats.msg_rate_in):
        return 0.0
    return record.stats.msg_rate_in


def _is_midpoint(ground: Ground) -> bool:
    return ground.situation.capabilities.midpoint_only


def _collecting(ground: Ground) -> Pause | None:
    """Return the time in which consumers that come after an act are collected; None where there was no act for consumers."""
    acted_at = ground.situation.history.last_consumer_act_at
    started = [one.started_at for one in ground.in_flight if one.for_consumers]
    acted_at = max(started if acted_at is None else [acted_at, *started], default=None)
    changed_at = ground.situation.consumers_changed_at
    if acted_at is None or changed_at is None or changed_at < acted_at:
        return None
    ends_at = min(changed_at + COLLECTING_MS, acted_at + LONGEST_COLLECTING_MS)
    return Pause(RefusalReason.CONSUMERS_JOINING, "consumers_changed_at", changed_at, ends_at)


def _refuse_caps(ground: Ground, served: int) -> None:
    """Say which cap leaves consumers without a place."""
    policy = ground.policy
    at_segments = (RefusalReason.AT_MAX_SEGMENTS, "segments", ground.segments_high, policy.max_segments)
    at_buckets = (RefusalReason.AT_MAX_BUCKETS, "buckets", served, ground.consumers)
    if ground.refusals and not ground.shared_buckets and ground.segments_high < policy.max_segments:
        return  # a segment that is busy, and says so
    reason = at_buckets if ground.shared_buckets else at_segments
    ground.refuse(Refusal(None, Lane.CONSUMER, *reason))
