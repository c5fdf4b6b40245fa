"""The consumer lane of the profile `adaptive`: one plan for all consumers that have nothing to read.

A consumer needs a *place*: an entry bucket where consumers can share a segment, a whole segment where they cannot. When there are
fewer places than consumers, as few segments as possible are sealed, the busiest first, and their children get places for all consumers
in one act: more segments as far as the rate justifies them (`split_vs_rebucket_min_msg_rate_in` for each) and the cap allows, more
entry buckets for the rest (PIP-486). Segments that the rate does not justify are made only where entry buckets cannot serve everybody.

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
from controller.domain.segment import Segment

COLLECTING_MS = 500
"""After an act for consumers, the next one waits until no consumer has come or gone for so long,"""
LONGEST_COLLECTING_MS = 10_000
"""but no longer than this after the earlier act."""


def answer(ground: Ground) -> tuple[Decision, ...]:
    """Return the acts that give every consumer a place, or as many of them as the caps allow."""
    there = ground.count_places()
    if ground.consumers <= there:
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
    for is_justified in (True, False):
        for count in range(1, len(candidates) + 1):
            chosen = candidates[:count]
            others = there - sum(one.places for one in chosen)
            can = sum(_most_parts(ground, chosen, is_justified=is_justified)) * ground.most_places
            if others + can >= ground.consumers:
                return _shared_out(ground, chosen, others)
    return _shared_out(ground, candidates, there - sum(one.places for one in candidates))


def _shared_out(ground: Ground, chosen: Sequence[_Candidate], others: int) -> list[_Share]:
    """Give the chosen segments equal shares of the consumers that the other segments have no place for, within their bounds."""
    justified = _most_parts(ground, chosen, is_justified=True)
    possible = _most_parts(ground, chosen, is_justified=False)
    left, most, shares = ground.consumers - others, ground.most_places, []
    for number, i in enumerate(sorted(range(len(chosen)), key=lambda i: possible[i])):
        share = max(chosen[i].places, math.ceil(left / (len(chosen) - number)))
        parts = min(possible[i], max(min(justified[i], share), math.ceil(share / most)))
        per_part = min(math.ceil(share / parts), most)
        left -= parts * per_part
        shares.append(_Share(chosen[i].segment, chosen[i].places, parts, per_part))
    return shares


def _most_parts(ground: Ground, chosen: Sequence[_Candidate], *, is_justified: bool) -> list[int]:
    """Return the most children of each segment within the cap, the busiest first; `is_justified`: as far as the rate justifies them."""
    can, floor = ground.situation.capabilities, ground.policy.split_vs_rebucket_min_msg_rate_in
    room = max(0, ground.policy.max_segments - ground.segments_high)
    found = []
    for one in chosen:
        most = 2 if can.midpoint_only else max(2, can.max_children)
        if is_justified and ground.shared_buckets and floor > 0:
            most = min(most, int(min(one.rate / floor, RING_SIZE)))
        parts = max(1, min(most, one.segment.hash_range.width, room + 1))
        room -= parts - 1
        found.append(parts)
    return found


def _candidates(ground: Ground) -> list[_Candidate]:
    """Return the segments that no operation and no proposal holds, the busiest first."""
    found = []
    for segment, record in zip(ground.active, ground.records, strict=True):
        if ground.refuse_busy(Lane.CONSUMER, segment.segment_id):
            continue
        rate = 0.0 if record is None or ground.is_stale(record) else record.stats.msg_rate_in
        if rate > 0:
            ground.wake_when_stale(record)
        found.append(
            _Candidate(segment, ground.places_of(segment.bucket_count), 0.0 if math.isnan(rate) else rate)
        )
    return sorted(found, key=lambda one: (-one.rate, one.segment.segment_id))


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
