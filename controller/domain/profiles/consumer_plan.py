"""The consumer lane of the profile `adaptive`: one plan for all consumers that have nothing to read.

A consumer needs a *place*: an entry bucket if consumers can share a segment, otherwise a whole segment. The lane acts
in two cases: there are fewer places than consumers, or there are fewer segments than consumers although the rate
justifies more segments (`split_vs_rebucket_min_msg_rate_in` each). It seals as few segments as possible, the busiest
first, and their children serve all consumers in one action. The children are segments as far as the rate justifies
them and the limit allows, and entry buckets for the rest (PIP-486). Segments that the rate does not justify are
created only if entry buckets cannot serve all consumers.

The first action is taken at once. Consumers that register while it runs are collected until no more of them join, and
are served by a second action. Actions for load do not delay actions for consumers.
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
from controller.domain.lanes.evaluation_context import EvaluationContext
from controller.domain.load import LoadRecord
from controller.domain.segment import Segment

COLLECTING_MS = 500
"""Milliseconds without a change of consumers after which the next action for consumers is taken, following an earlier
one.
"""
LONGEST_COLLECTING_MS = 10_000
"""Maximum number of milliseconds for which the next action for consumers waits after the earlier one."""


def segments_wanted(ground: EvaluationContext) -> int:
    """Return how many segments the consumers should have: one each; if consumers can share segments, only as many as the
    rate justifies.
    """
    if not ground.shared_buckets:
        return ground.consumers
    split_rate = ground.policy.split_vs_rebucket_min_msg_rate_in
    rate = sum(_rate(ground, record) for record in ground.records)
    justified = int(min(rate / split_rate, RING_SIZE)) if split_rate > 0 else RING_SIZE
    return min(ground.consumers, justified, ground.policy.max_segments)


def answer(ground: EvaluationContext) -> tuple[Decision, ...]:
    """Return the actions that give every consumer a place, or as many consumers as the limits allow."""
    places = ground.count_places()
    if ground.consumers <= places and ground.segments_net >= segments_wanted(ground):
        return ()
    if ground.refuse_during(_collecting(ground), Lane.CONSUMER, None):
        return ()
    shares = _shares(ground, places)
    served = places + sum(share.parts * share.per_part - share.places for share in shares)
    if served < ground.consumers:
        _refuse_limits(ground, served)
    return tuple(decision for share in shares if (decision := share.decision(ground)) is not None)


class _Candidate(NamedTuple):
    """A segment that may be sealed, the number of consumers that it serves, and its incoming messages per second."""

    segment: Segment
    places: int
    rate: float


@dataclass(frozen=True, slots=True)
class _Share:
    """The result for one segment: `parts` children with `per_part` places each."""

    segment: Segment
    places: int
    parts: int
    per_part: int

    def decision(self, ground: EvaluationContext) -> Decision | None:
        """Return the action; None if nothing would change."""
        segment, buckets = self.segment, entry_buckets.rounded_up(self.per_part)
        buckets = min(buckets, ground.most_places)
        if self.parts == 1:
            if buckets <= segment.bucket_count:
                return None
            return Rebucket(segment.segment_id, buckets, CONSUMER_COUNT)
        cuts = () if _is_midpoint(ground) else segment.hash_range.equal_cuts(self.parts)
        inherited = entry_buckets.inherited_on_split(segment.bucket_count, self.parts)
        explicit = buckets if ground.shared_buckets and buckets > inherited else None
        return Split(segment.segment_id, cuts, CONSUMER_COUNT, buckets=explicit)


def _shares(ground: EvaluationContext, places: int) -> list[_Share]:
    """Return the results for the fewest segments, the busiest first, that serve all consumers; if that is impossible,
    for every segment that no operation holds.
    """
    candidates = _candidates(ground)
    more = max(0, segments_wanted(ground) - ground.segments_net)
    more = min(more, sum(_most_parts(ground, candidates, is_justified=True)) - len(candidates))
    for is_justified in (True, False):
        for count in range(1, len(candidates) + 1):
            chosen = candidates[:count]
            others = places - sum(candidate.places for candidate in chosen)
            parts = sum(_most_parts(ground, chosen, is_justified=is_justified))
            if parts - count >= more and others + parts * ground.most_places >= ground.consumers:
                return _divide_consumers(ground, chosen, others, more)
    return _divide_consumers(
        ground, candidates, places - sum(candidate.places for candidate in candidates), more
    )


def _divide_consumers(
    ground: EvaluationContext, chosen: Sequence[_Candidate], others: int, more: int
) -> list[_Share]:
    """Return the results for the chosen segments: `more` additional children that the rate justifies, and equal shares,
    within the limits, of the consumers for which the `others` have no place.
    """
    justified = []
    for parts in _most_parts(ground, chosen, is_justified=True):
        justified.append(1 + min(parts - 1, more))
        more -= justified[-1] - 1
    spare = ground.policy.max_segments - ground.segments_high - sum(justified) + len(justified)
    left, places_per_part, shares = ground.consumers - others, ground.most_places, []
    bounds = [_bound(ground, candidate) for candidate in chosen]
    for number, i in enumerate(sorted(range(len(chosen)), key=lambda i: bounds[i])):
        share = max(chosen[i].places, justified[i], math.ceil(left / (len(chosen) - number)))
        unjustified = (
            min(math.ceil(share / places_per_part), bounds[i], justified[i] + max(0, spare)) - justified[i]
        )
        parts = justified[i] + max(0, unjustified)
        spare -= parts - justified[i]
        per_part = min(math.ceil(share / parts), places_per_part)
        left -= parts * per_part
        shares.append(_Share(chosen[i].segment, chosen[i].places, parts, per_part))
    return shares


def _bound(ground: EvaluationContext, candidate: _Candidate) -> int:
    """Return the maximum number of children that the data plane can make of the segment."""
    capabilities = ground.situation.capabilities
    return max(
        1,
        min(
            2 if capabilities.midpoint_only else max(2, capabilities.max_children),
            candidate.segment.hash_range.width,
        ),
    )


def _most_parts(ground: EvaluationContext, chosen: Sequence[_Candidate], *, is_justified: bool) -> list[int]:
    """Return the maximum number of children of each segment within the limit of segments, the busiest first. With
    `is_justified` the rate limits the number as well.
    """
    split_rate = ground.policy.split_vs_rebucket_min_msg_rate_in
    spare = max(0, ground.policy.max_segments - ground.segments_high)
    counts = []
    for candidate in chosen:
        limit = _bound(ground, candidate)
        if is_justified and ground.shared_buckets and split_rate > 0:
            limit = min(limit, int(min(candidate.rate / split_rate, RING_SIZE)))
        parts = max(1, min(limit, spare + 1))
        spare -= parts - 1
        counts.append(parts)
    return counts


def _candidates(ground: EvaluationContext) -> list[_Candidate]:
    """Return the segments that neither an operation nor a proposal holds, the busiest first."""
    candidates = []
    for segment, record in zip(ground.active, ground.records, strict=True):
        if ground.refuse_busy(Lane.CONSUMER, segment.segment_id):
            continue
        rate = _rate(ground, record)
        if rate > 0:
            ground.wake_when_stale(record)
        candidates.append(_Candidate(segment, ground.places_of(segment.bucket_count), rate))
    return sorted(candidates, key=lambda c: (-c.rate, c.segment.segment_id))


def _rate(ground: EvaluationContext, record: LoadRecord | None) -> float:
    """Return the incoming messages per second; 0 without a fresh reading."""
    if record is None or ground.is_stale(record) or math.isnan(record.stats.msg_rate_in):
        return 0.0
    return record.stats.msg_rate_in


def _is_midpoint(ground: EvaluationContext) -> bool:
    return ground.situation.capabilities.midpoint_only


def _collecting(ground: EvaluationContext) -> Pause | None:
    """Return the period after an action in which joining consumers are collected; None if there was no action for
    consumers.
    """
    acted_at = ground.situation.history.last_consumer_act_at
    started = [reshape.started_at for reshape in ground.in_flight if reshape.for_consumers]
    acted_at = max(started if acted_at is None else [acted_at, *started], default=None)
    changed_at = ground.situation.consumers_changed_at
    if acted_at is None or changed_at is None or changed_at < acted_at:
        return None
    ends_at = min(changed_at + COLLECTING_MS, acted_at + LONGEST_COLLECTING_MS)
    return Pause(RefusalReason.CONSUMERS_JOINING, "consumers_changed_at", changed_at, ends_at)


def _refuse_limits(ground: EvaluationContext, served: int) -> None:
    """Refuse the topic for the limit that leaves consumers without a place."""
    policy = ground.policy
    at_segments = (RefusalReason.AT_MAX_SEGMENTS, "segments", ground.segments_high, policy.max_segments)
    at_buckets = (RefusalReason.AT_MAX_BUCKETS, "buckets", served, ground.consumers)
    if ground.refusals and not ground.shared_buckets and ground.segments_high < policy.max_segments:
        return  # a busy segment is the reason, and is refused already
    reason = at_buckets if ground.shared_buckets else at_segments
    ground.refuse(Refusal(None, Lane.CONSUMER, *reason))
