"""The consumer lane: more consumers than segments require a split, or more entry buckets.

Consumers of different subscriptions do not compete, so the largest subscription counts. If consumers can share a
segment by buckets, the lane prefers buckets at the limit of segments and for a topic whose busiest segment is slow
(PIP-486), as long as more buckets help: a segment has at most `Ground.most_readers` readers. If consumers cannot
share a segment, a consumer without a segment requires a split, up to the limit of segments.
"""

from __future__ import annotations

import math

from controller.domain.decision import Decision, Lane, Rebucket, Refusal, RefusalReason
from controller.domain.lanes.evaluation_context import EvaluationContext


def answer(ground: EvaluationContext) -> tuple[Decision, ...]:
    """Return a split of the busiest segment, a batch of rebuckets, or nothing."""
    if ground.consumers <= ground.segments_net + ground.held_places:
        return ()
    policy = ground.policy
    if ground.segments_high >= policy.max_segments:
        if ground.shared_buckets:
            return _rebucket(ground, "at-max-segments")
        _refuse_topic(
            ground, RefusalReason.AT_MAX_SEGMENTS, "segments", ground.segments_high, policy.max_segments
        )
        return ()
    rates = [
        0.0
        if record is None or ground.is_stale(record) or math.isnan(record.stats.msg_rate_in)
        else record.stats.msg_rate_in
        for record in ground.records
    ]
    busiest = _busiest(ground, rates)
    if busiest is None:
        return ()
    limit = ground.most_readers if ground.strict else ground.most_places
    buckets_suffice = ground.consumers <= limit * ground.segments_net
    is_slow = rates[busiest] < policy.split_vs_rebucket_min_msg_rate_in
    if ground.shared_buckets and buckets_suffice and is_slow:
        return _rebucket(ground, "below-split-rate-floor")
    segment_id = ground.active[busiest].segment_id
    if ground.refuse_during(ground.cooldowns.split, Lane.CONSUMER, segment_id):
        return ()
    return (ground.split(busiest, "consumer-count"),)


def _busiest(ground: EvaluationContext, rates: list[float]) -> int | None:
    """Return the index of the segment with the highest incoming message rate that can be split; of equal rates the
    lowest id. None if no segment can be split.
    """
    active = ground.active
    for index in sorted(range(len(active)), key=lambda i: (-rates[i], active[i].segment_id)):
        segment = active[index]
        if rates[index] > 0:
            ground.wake_when_stale(ground.records[index])
        if ground.refuse_busy(Lane.CONSUMER, segment.segment_id):
            continue
        if segment.hash_range.width > 1 or ground.strict:
            return index
        ground.refuse(
            Refusal(
                segment_id=segment.segment_id,
                lane=Lane.CONSUMER,
                reason=RefusalReason.WIDTH_ONE,
                metric="width",
                value=1,
                needed=2,
            )
        )
    return None


def _rebucket(ground: EvaluationContext, reason: str) -> tuple[Decision, ...]:
    """Return the rebuckets of all segments with fewer buckets than their share, in one batch with ascending ids.

    The total decides whether buckets are missing, and the share per segment decides how many each segment should
    have, as in Pulsar. So the buckets of an uneven layout may be raised only in part.
    """
    consumers = ground.consumers
    total = sum(min(segment.bucket_count, ground.most_readers) for segment in ground.active)
    if consumers <= total:
        _refuse_topic(ground, RefusalReason.ENOUGH_BUCKETS, "buckets", total, consumers)
        return ()
    share = -(-consumers // max(1, ground.segments_net))
    target = min(1 << (share - 1).bit_length(), ground.most_places)
    short = sorted(segment.segment_id for segment in ground.active if segment.bucket_count < target)
    if not short:
        _refuse_topic(ground, RefusalReason.AT_MAX_BUCKETS, "buckets", total, consumers)
        return ()
    if ground.refuse_during(ground.cooldowns.rebucket, Lane.CONSUMER, None):
        return ()
    reported = {refusal.segment_id for refusal in ground.refusals}
    for segment_id in short:
        if segment_id not in reported:
            ground.refuse_busy(Lane.CONSUMER, segment_id)
    return tuple(Rebucket(i, target, reason) for i in short if i not in ground.busy)


def _refuse_topic(
    ground: EvaluationContext, reason: RefusalReason, metric: str, value: int, needed: int
) -> None:
    ground.refuse(
        Refusal(segment_id=None, lane=Lane.CONSUMER, reason=reason, metric=metric, value=value, needed=needed)
    )
