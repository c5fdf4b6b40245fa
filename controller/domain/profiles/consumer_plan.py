"""The consumer lane of the profile `adaptive`: one plan for all consumers that have nothing to read.

A consumer needs a *place*: an entry bucket if consumers can share a segment, otherwise a whole segment. The lane acts
in two cases: there are fewer places than consumers, or there are fewer segments than consumers although the incoming
rate *justifies* more segments. If consumers can share segments, the rate justifies one segment for each
`split_vs_rebucket_min_msg_rate_in` incoming messages per second. Otherwise, or if this parameter is 0, it justifies
any number of segments.

The lane seals as few segments as possible, the busiest first, and their children serve all consumers in one action. A
segment gets at most `MOST_EQUAL_SHARES` times as many consumers as its part of the ring or of the incoming rate,
whichever is larger, would have if all consumers had equal shares. The plan exceeds this limit only if the segments
that the rate justifies cannot serve all consumers within it: a consumer whose share of the ring is small may have no
key, and then never receives a message. The children are segments as far as the rate justifies them and `max_segments`
allows, and entry buckets for the rest (PIP-486). Segments that the rate does not justify are created only if entry
buckets cannot serve all consumers.

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
from controller.domain.load_record import LoadRecord
from controller.domain.profiles.evaluation_context import EvaluationContext, Pause
from controller.domain.segment import Segment

MOST_EQUAL_SHARES = 2
"""Maximum number of consumers that the plan gives to a segment, as a multiple of the number that equal shares would
give to it.
"""
KEPT_FROM = 0.8
"""Part of `split_vs_rebucket_min_msg_rate_in` from which other actions keep a segment for consumers. It is less than 1, so
that a rate near a multiple of this parameter does not add and remove a segment in turns.
"""
COLLECTING_MS = 500
"""Milliseconds without a change of consumers after which the next action for consumers is taken, following an earlier
one.
"""
LONGEST_COLLECTING_MS = 10_000
"""Maximum number of milliseconds for which the next action for consumers waits after the earlier one."""


def segments_wanted(context: EvaluationContext) -> int:
    """Return the number of segments that the topic should have for its consumers. If consumers cannot share segments,
    this is the number of consumers, without a limit.

    If consumers can share segments, the result is the smallest of three numbers, and may be 0: the number of
    consumers, `max_segments`, and the number of segments that the topic's incoming rate justifies. The rate justifies
    one segment for each `split_vs_rebucket_min_msg_rate_in` messages per second, and any number of segments if this
    parameter is 0. A segment without a fresh load record adds nothing to the rate.
    """
    return _segments_for(context, context.policy.split_vs_rebucket_min_msg_rate_in)


def segments_to_keep(context: EvaluationContext) -> int:
    """Return the number of segments below which other actions must not bring the topic, because its consumers need
    them. Differs from `segments_wanted` in two ways if consumers can share segments: the part `KEPT_FROM` of
    `split_vs_rebucket_min_msg_rate_in` justifies a segment, and any number of segments is justified while one has no
    fresh load record, because the topic's rate is then not known.
    """
    is_known = not any(record is None or context.is_stale(record) for record in context.records)
    split_rate = KEPT_FROM * context.policy.split_vs_rebucket_min_msg_rate_in
    return _segments_for(context, split_rate if is_known else 0)


def _segments_for(context: EvaluationContext, split_rate: float) -> int:
    """Return the number of segments for the consumers of the topic (`segments_wanted`) if `split_rate` messages per
    second justify a segment.
    """
    if not context.shared_buckets:
        return context.consumers
    rate = sum(_rate(context, record) for record in context.records)
    justified = int(min(rate / split_rate, RING_SIZE)) if split_rate > 0 else RING_SIZE
    return min(context.consumers, justified, context.policy.max_segments)


def answer(context: EvaluationContext) -> tuple[Decision, ...]:
    """Return the actions that give a place to every consumer, or to as many consumers as the limits allow. The result
    is empty, and no refusal is added, if every consumer has a place and the topic has the segments that it should
    have (`segments_wanted`).

    Otherwise refusals are added to the context. While consumers are still joining after an earlier action, the topic
    is refused and the result is empty. After that, each busy segment is refused. If the actions leave consumers
    without a place, the topic is refused too, because of the limit. If consumers cannot share segments, this last
    refusal is added only if the topic reaches `max_segments` (`_refuse_limits`).
    """
    places = context.count_places()
    if context.consumers <= places and context.segments_net >= segments_wanted(context):
        return ()
    if context.refuse_during(_collecting(context), Lane.CONSUMER, None):
        return ()
    shares = _shares(context, places)
    served = places + sum(share.parts * share.per_part - share.places for share in shares)
    if served < context.consumers:
        _refuse_limits(context, served, context.segments_high + sum(share.parts - 1 for share in shares))
    return tuple(decision for share in shares if (decision := share.decision(context)) is not None)


class _Candidate(NamedTuple):
    """A segment that may be sealed, the number of consumers that it serves, its incoming messages per second, and the
    maximum number of consumers that the plan gives to its children.
    """

    segment: Segment
    places: int
    rate: float
    most_consumers: int


@dataclass(frozen=True, slots=True)
class _Share:
    """The children that a segment gets: `parts` children with `per_part` places each. `places`: number of consumers
    that the segment serves before.
    """

    segment: Segment
    places: int
    parts: int
    per_part: int

    def decision(self, context: EvaluationContext) -> Decision | None:
        """Return the action that makes the children: a rebucket for one child, a split for several. The result is
        None if the only child would have no more entry buckets than the segment has.

        A child needs `per_part` entry buckets, rounded up to a power of two, at most `most_places`. A split states
        this number only if consumers can share segments and the children would inherit fewer; otherwise `buckets` of
        the split is None. Several children have equal widths.
        """
        segment, buckets = self.segment, entry_buckets.rounded_up(self.per_part)
        buckets = min(buckets, context.most_places)
        if self.parts == 1:
            if buckets <= segment.bucket_count:
                return None
            return Rebucket(segment.segment_id, buckets, CONSUMER_COUNT)
        cuts = () if _is_midpoint(context) else segment.hash_range.equal_cuts(self.parts)
        inherited = entry_buckets.inherited_on_split(segment.bucket_count, self.parts)
        explicit = buckets if context.shared_buckets and buckets > inherited else None
        return Split(segment.segment_id, cuts, CONSUMER_COUNT, buckets=explicit)


def _shares(context: EvaluationContext, places: int) -> list[_Share]:
    """Return the children that segments get, for the fewest segments that suffice, those with the highest incoming
    rate first. The children of the segments together serve all consumers and, as far as the limits allow, give the
    topic the segments that it should have (`segments_wanted`). Each busy segment is refused and gets no children.

    Four attempts are made in this order: only children that the incoming rate justifies, within the limit of
    consumers of each segment (`most_consumers`); the same beyond this limit; also children that the rate does not
    justify, within the limit; and beyond the limit. If no attempt serves all consumers, every segment that is not
    busy gets children. The result is empty if all segments are busy. `places`: number of consumers that the present
    segments can serve.
    """
    candidates = _candidates(context)
    if not candidates:
        return []
    segments_to_add = max(0, segments_wanted(context) - context.segments_net)
    unlimited = [candidate._replace(most_consumers=RING_SIZE) for candidate in candidates]
    segments_to_add = min(
        segments_to_add, sum(_most_parts(context, unlimited, is_justified=True)) - len(candidates)
    )
    for is_justified in (True, False):
        for limited in (candidates, unlimited):
            count = _fewest(
                context, limited, segments_to_add, context.consumers - places, is_justified=is_justified
            )
            if count is not None:
                return _divide_consumers(context, limited[:count], places, segments_to_add)
    return _divide_consumers(context, unlimited, places, segments_to_add)


def _fewest(
    context: EvaluationContext,
    candidates: Sequence[_Candidate],
    segments_to_add: int,
    places_to_add: int,
    *,
    is_justified: bool,
) -> int | None:
    """Return the smallest number n for which the children of the first n candidates add `segments_to_add` segments
    and `places_to_add` places (consumers that can be served) to the topic. At least one candidate is always counted.
    The result is None if all candidates together do not suffice. With `is_justified`, only the children that the
    incoming rate of a candidate justifies count.
    """
    most_parts = _most_parts(context, candidates, is_justified=is_justified)
    for count, (candidate, parts) in enumerate(zip(candidates, most_parts, strict=True), start=1):
        segments_to_add -= parts - 1
        places_to_add -= _capacity(context, candidate, parts) - candidate.places
        if segments_to_add <= 0 and places_to_add <= 0:
            return count
    return None


def _divide_consumers(
    context: EvaluationContext, chosen: Sequence[_Candidate], places: int, segments_to_add: int
) -> list[_Share]:
    """Return the children (a share) of each of the `chosen` segments, which must not be empty. The consumers that the
    other segments cannot serve are divided equally among the chosen segments. `places`: number of consumers that all
    present segments can serve.

    `segments_to_add` additional children go to the segments in the order of `chosen`, to each as many as its incoming
    rate justifies. A segment whose children would have too few places for its consumers gets further children, which
    the rate does not justify, as far as the policy's maximum number of segments allows.

    In the result, segments that already serve more than an equal part of the consumers come first. The others follow,
    ordered by the number of consumers that their children can serve, the lowest first.
    """
    justified = []
    for parts in _most_parts(context, chosen, is_justified=True):
        justified.append(1 + min(parts - 1, segments_to_add))
        segments_to_add -= justified[-1] - 1
    spare = context.policy.max_segments - context.segments_high - sum(justified) + len(justified)
    other_places = places - sum(candidate.places for candidate in chosen)
    consumers_left, shares = context.consumers - other_places, []
    equal_part = consumers_left / len(chosen)
    bounds = [_bound(context, candidate) for candidate in chosen]
    capacities = [_capacity(context, *pair) for pair in zip(chosen, bounds, strict=True)]
    order = sorted(range(len(chosen)), key=lambda i: (chosen[i].places <= equal_part, capacities[i]))
    for served_segments, i in enumerate(order):
        share = max(
            chosen[i].places, justified[i], math.ceil(consumers_left / (len(chosen) - served_segments))
        )
        share = min(share, capacities[i])  # more children would not serve more consumers
        most = max(justified[i], min(bounds[i], justified[i] + max(0, spare)))
        parts = _fewest_parts(context, chosen[i], share, justified[i], most)
        spare -= parts - justified[i]
        per_part = math.ceil(min(share, _capacity(context, chosen[i], parts)) / parts)
        consumers_left -= parts * per_part
        shares.append(_Share(chosen[i].segment, chosen[i].places, parts, per_part))
    return shares


def _fewest_parts(
    context: EvaluationContext, candidate: _Candidate, consumers: int, least: int, most: int
) -> int:
    """Return the smallest number of children, from `least` to `most`, that can serve the consumers; `most` if none can."""
    enough = (parts for parts in range(least, most) if _capacity(context, candidate, parts) >= consumers)
    return next(enough, most)


def _capacity(context: EvaluationContext, candidate: _Candidate, parts: int) -> int:
    """Return the number of consumers that `parts` children of the segment can serve. The number is limited by
    `most_places` for each child and by `most_consumers` for all children together. Each child serves at least as many
    consumers as it inherits buckets, even beyond these limits, because the limits may have been lowered after the
    segment was created. With `parts` 1, this is the number of consumers that a rebucket, or the unchanged segment,
    can serve, whichever is larger.
    """
    inherited = entry_buckets.inherited_on_split(candidate.segment.bucket_count, parts)
    allowed = min(parts * context.most_places, candidate.most_consumers)
    return max(allowed, parts * context.places_of(inherited))


def _bound(context: EvaluationContext, candidate: _Candidate) -> int:
    """Return the maximum number of children that the data plane can make of the segment, and at most one for each
    hash and one for each consumer that the plan may give to the segment.
    """
    capabilities = context.situation.capabilities
    return max(
        1,
        min(
            2 if capabilities.midpoint_only else max(2, capabilities.max_children),
            candidate.segment.hash_range.width,
            candidate.most_consumers,
        ),
    )


def _most_parts(context: EvaluationContext, chosen: Sequence[_Candidate], *, is_justified: bool) -> list[int]:
    """Return the maximum number of children of each of the `chosen` segments, in their order, at least 1.

    The data plane limits each number. The segments that `max_segments` leaves free go to the first chosen segments
    first. With `is_justified`, a segment gets only the children that its own incoming rate justifies; any number is
    justified if consumers cannot share segments or `split_vs_rebucket_min_msg_rate_in` is 0.
    """
    split_rate = context.policy.split_vs_rebucket_min_msg_rate_in
    spare = max(0, context.policy.max_segments - context.segments_high)
    most_parts = []
    for candidate in chosen:
        limit = _bound(context, candidate)
        if is_justified and context.shared_buckets and split_rate > 0:
            limit = min(limit, int(min(candidate.rate / split_rate, RING_SIZE)))
        parts = max(1, min(limit, spare + 1))
        spare -= parts - 1
        most_parts.append(parts)
    return most_parts


def _candidates(context: EvaluationContext) -> list[_Candidate]:
    """Return the segments that are not busy (no live or held action seals them), the highest incoming rate first, of
    equal rates the lowest id. Add a refusal of each busy segment to the context. The evaluation is valid at most until
    a used load record becomes stale.
    """
    topic_rate = sum(_rate(context, record) for record in context.records)
    candidates = []
    for segment, record in zip(context.active, context.records, strict=True):
        if context.refuse_busy(Lane.CONSUMER, segment.segment_id):
            continue
        rate = _rate(context, record)
        if rate > 0:
            context.wake_when_stale(record)
        part = segment.hash_range.width / RING_SIZE
        if topic_rate > 0:
            part = max(part, rate / topic_rate)
        most_consumers = math.ceil(MOST_EQUAL_SHARES * context.consumers * part)
        places = context.places_of(segment.bucket_count)
        candidates.append(_Candidate(segment, places, rate, most_consumers))
    return sorted(candidates, key=lambda c: (-c.rate, c.segment.segment_id))


def _rate(context: EvaluationContext, record: LoadRecord | None) -> float:
    """Return the incoming messages per second; 0 without a fresh load record, or if the rate was never measured."""
    if record is None or context.is_stale(record) or math.isnan(record.stats.msg_rate_in):
        return 0.0
    return record.stats.msg_rate_in


def _is_midpoint(context: EvaluationContext) -> bool:
    """Return True if the data plane can cut a segment at its midpoint only."""
    return context.situation.capabilities.midpoint_only


def _collecting(context: EvaluationContext) -> Pause | None:
    """Return the period in which the consumers that join after an action for consumers are collected. The period
    begins at the last change of consumers. The period ends `COLLECTING_MS` later, but at most `LONGEST_COLLECTING_MS`
    after the last action for consumers began. The period may be over already.

    The result is None if there was no action for consumers, if consumers have not changed since the action began, or
    if the time of the last change is unknown. Running reshapes count as actions.
    """
    acted_at = context.situation.history.last_consumer_act_at
    started = [reshape.started_at for reshape in context.in_flight if reshape.for_consumers]
    acted_at = max(started if acted_at is None else [acted_at, *started], default=None)
    changed_at = context.situation.consumers_changed_at
    if acted_at is None or changed_at is None or changed_at < acted_at:
        return None
    ends_at = min(changed_at + COLLECTING_MS, acted_at + LONGEST_COLLECTING_MS)
    return Pause(RefusalReason.CONSUMERS_JOINING, "consumers_changed_at", changed_at, ends_at)


def _refuse_limits(context: EvaluationContext, served: int, segments: int) -> None:
    """Add a refusal of the topic to the context, because the planned actions leave consumers without a place.
    `served` is the number of consumers with a place, and `segments` the number of segments, both after the planned
    actions.

    If consumers can share segments, the reason is AT_MAX_BUCKETS. If consumers cannot share segments and `segments`
    has reached `max_segments`, the reason is AT_MAX_SEGMENTS. Otherwise nothing is added: either a busy segment is
    the cause and has a refusal, or the data plane cannot make enough children in one action and the next plan
    continues.
    """
    most_segments = context.policy.max_segments
    if context.shared_buckets:
        reason = (RefusalReason.AT_MAX_BUCKETS, "buckets", served, context.consumers)
    elif segments >= most_segments:
        reason = (RefusalReason.AT_MAX_SEGMENTS, "segments", segments, most_segments)
    else:
        return
    context.refuse(Refusal(None, Lane.CONSUMER, *reason))
