"""The consumer lane: more consumers than segments require a split, or more entry buckets.

Consumers of different subscriptions do not compete, so the largest subscription counts. If consumers can share a
segment by buckets, the lane prefers buckets at the limit of segments and for a topic whose busiest segment is slow
(PIP-486), as long as more buckets help. A segment then serves at most `EvaluationContext.most_places` consumers;
under `strict_pulsar` the policy's limit of buckets does not count, so the limit is
`EvaluationContext.most_readers`. If consumers cannot share a segment, a consumer without a segment requires a
split, up to the limit of segments.
"""

from __future__ import annotations

import math

from controller.domain.decision import Decision, Lane, Rebucket, Refusal, RefusalReason
from controller.domain.profiles.evaluation_context import EvaluationContext


def answer(context: EvaluationContext) -> tuple[Decision, ...]:
    """Return one split, a batch of rebuckets, or no action. If there are no more consumers than segments
    (`segments_net`, which counts running reshapes as committed), there is no action and no refusal.

    If the topic has its maximum number of segments (`segments_high`), segments are rebucketed (`_rebucket`); if
    consumers cannot share segments, the topic is refused instead.

    Otherwise the segment with the highest incoming rate that can be split decides. Each segment with a higher rate
    that cannot be split is refused. A segment without a fresh load record, or whose rate was never measured, counts
    with a rate of 0. If no segment can be split, there is no action. Segments are rebucketed (`_rebucket`) if
    consumers can share segments, the deciding segment has a rate below `split_vs_rebucket_min_msg_rate_in`, and all
    segments together can have enough buckets. In all other cases the deciding segment is split at its midpoint or,
    during the split cooldown, refused.
    """
    if context.consumers <= context.segments_net:
        return ()
    policy = context.policy
    if context.segments_high >= policy.max_segments:
        if context.shared_buckets:
            return _rebucket(context, "at-max-segments")
        _refuse_topic(
            context, RefusalReason.AT_MAX_SEGMENTS, "segments", context.segments_high, policy.max_segments
        )
        return ()
    rates = [
        0.0
        if record is None or context.is_stale(record) or math.isnan(record.stats.msg_rate_in)
        else record.stats.msg_rate_in
        for record in context.records
    ]
    busiest = _busiest(context, rates)
    if busiest is None:
        return ()
    limit = context.most_readers if context.strict else context.most_places
    buckets_suffice = context.consumers <= limit * context.segments_net
    is_slow = rates[busiest] < policy.split_vs_rebucket_min_msg_rate_in
    if context.shared_buckets and buckets_suffice and is_slow:
        return _rebucket(context, "below-split-rate-floor")
    segment_id = context.active[busiest].segment_id
    if context.refuse_during(context.cooldowns.split, Lane.CONSUMER, segment_id):
        return ()
    return (context.split(busiest, "consumer-count"),)


def _busiest(context: EvaluationContext, rates: list[float]) -> int | None:
    """Return the index of the segment with the highest rate of `rates` (incoming messages per second, by index) that
    can be split; of equal rates the lowest id. None if no segment can be split. Each segment that is passed over is
    refused. Under `strict_pulsar` a segment of one hash counts as a segment that can be split, as in Pulsar. The
    evaluation is valid at most until a load record with a rate above 0 that was compared becomes stale.
    """
    active = context.active
    for index in sorted(range(len(active)), key=lambda i: (-rates[i], active[i].segment_id)):
        segment = active[index]
        if rates[index] > 0:
            context.wake_when_stale(context.records[index])
        if context.refuse_busy(Lane.CONSUMER, segment.segment_id):
            continue
        if segment.hash_range.width > 1 or context.strict:
            return index
        context.refuse(
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


def _rebucket(context: EvaluationContext, reason: str) -> tuple[Decision, ...]:
    """Return, in one batch with ascending ids, a rebucket of each segment that has fewer buckets than the share. The
    rebucket gives the segment as many buckets as the share and has the reason `reason`. The share is the number of
    consumers divided by `segments_net`, rounded up to a power of two, at most `most_places`. A busy segment is not
    rebucketed; a refusal of the segment is added to the context, unless the context has a refusal of the segment
    already.

    The result is empty, and the topic is refused, in three cases, which are checked in this order: the segments
    together have at least as many buckets as there are consumers; no segment has fewer buckets than the share; or the
    rebucket cooldown lasts. The first case is decided by the sum of all segments, as in Pulsar, so in an uneven
    layout a consumer may remain without a bucket.
    """
    consumers = context.consumers
    buckets = sum(min(segment.bucket_count, context.most_readers) for segment in context.active)
    if consumers <= buckets:
        _refuse_topic(context, RefusalReason.ENOUGH_BUCKETS, "buckets", buckets, consumers)
        return ()
    share = -(-consumers // max(1, context.segments_net))
    target = min(1 << (share - 1).bit_length(), context.most_places)
    segment_ids = sorted(segment.segment_id for segment in context.active if segment.bucket_count < target)
    if not segment_ids:
        _refuse_topic(context, RefusalReason.AT_MAX_BUCKETS, "buckets", buckets, consumers)
        return ()
    if context.refuse_during(context.cooldowns.rebucket, Lane.CONSUMER, None):
        return ()
    refused_ids = {refusal.segment_id for refusal in context.refusals}
    for segment_id in segment_ids:
        if segment_id not in refused_ids:
            context.refuse_busy(Lane.CONSUMER, segment_id)
    return tuple(Rebucket(i, target, reason) for i in segment_ids if i not in context.busy)


def _refuse_topic(
    context: EvaluationContext, reason: RefusalReason, metric: str, value: int, needed: int
) -> None:
    """Add to the context a refusal of the consumer lane that concerns the whole topic. The other parameters are fields of
    `Refusal`.
    """
    context.refuse(
        Refusal(segment_id=None, lane=Lane.CONSUMER, reason=reason, metric=metric, value=value, needed=needed)
    )
