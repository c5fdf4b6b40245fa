"""Gives up entry buckets that no consumer has needed for `bucket_idle_seconds`. Pulsar never does this. All readers of
the segment have to reconnect each time, so a segment gives up at least half of its buckets or none.
"""

from __future__ import annotations

from controller.domain.decision import Decision, Lane, Rebucket, RefusalReason
from controller.domain.entry_buckets import rounded_up
from controller.domain.profiles.evaluation_context import EvaluationContext, Pause


def answer(context: EvaluationContext) -> tuple[Decision, ...]:
    """Return the rebuckets that give up entry buckets which no consumer needs. The caller evaluates this question
    only if there is no other action. The result is empty under `strict_pulsar`, if consumers cannot share a segment,
    if the time of the last change of consumers is unknown, and if no segment could give up at least half of its
    buckets.

    If a segment could give up buckets, the result is also empty, and the topic is refused once, in two cases: a
    cooldown for rebuckets, splits or merges lasts; or consumers changed, or a rebucket began, less than
    `bucket_idle_seconds` ago. Otherwise each busy segment that could give up buckets is refused, and the other
    segments are rebucketed.

    A segment keeps its share of the topic's `entry_bucket_budget`, rounded up, but no more than
    `entry_bucket_max_per_segment`. The topic keeps as many places as the number of its consumers, rounded up to a
    power of two.
    """
    changed_at = context.situation.consumers_changed_at
    if context.strict or not context.shared_buckets or changed_at is None:
        return ()
    actions = _rebuckets(context)
    cooldowns = context.cooldowns
    pauses = (cooldowns.rebucket, cooldowns.split, cooldowns.merge, _idle_window(context, changed_at))
    if not actions or any(context.refuse_during(pause, Lane.CONSUMER, None) for pause in pauses):
        return ()
    return tuple(action for action in actions if not context.refuse_busy(Lane.CONSUMER, action.segment_id))


def _rebuckets(context: EvaluationContext) -> list[Rebucket]:
    """Return a rebucket for each segment that can give up at least half of its entry buckets: segments with the most
    buckets first, among equals the lowest id. A segment keeps its share of the topic's budget, and the topic keeps
    the places for its consumers, as `answer` describes. A segment that would keep more buckets than
    `entry_bucket_max_per_segment`, because the limit was lowered, is left as it is.

    The result also has busy segments, so that the caller can refuse them. The buckets of busy segments do not count
    as given up.
    """
    policy, segments = context.policy, max(1, context.segments_net)
    minimum = min(-(-policy.entry_bucket_budget // segments), policy.entry_bucket_max_per_segment)
    spare = max(0, context.count_places() - max(rounded_up(context.consumers), minimum * segments))
    rebuckets = []
    for segment in sorted(context.active, key=lambda s: (-s.bucket_count, s.segment_id)):
        places = context.places_of(segment.bucket_count)
        buckets_kept = max(minimum, rounded_up(places - spare) if spare < places else 1)
        if segment.bucket_count >= 2 * buckets_kept and buckets_kept <= policy.entry_bucket_max_per_segment:
            if segment.segment_id not in context.busy:
                spare -= places - context.places_of(buckets_kept)
            rebuckets.append(Rebucket(segment.segment_id, buckets_kept, "idle-buckets"))
    return rebuckets


def _idle_window(context: EvaluationContext, changed_at: int) -> Pause:
    """Return the pause of `bucket_idle_seconds` that begins with the last change of consumers or the last rebucket,
    whichever is later.
    """
    began = max(changed_at, context.situation.history.last_rebucket_at or 0)
    ends_at = began + context.policy.bucket_idle_seconds * 1000
    return Pause(RefusalReason.BUCKET_IDLE_WINDOW, "consumers_changed_at", began, ends_at)
