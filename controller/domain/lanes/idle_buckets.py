"""Gives up entry buckets that no consumer has needed for a long time. Pulsar never does this. It happens rarely, since
each time all readers of the segment have to reconnect.
"""

from __future__ import annotations

from controller.domain.decision import Decision, Lane, Rebucket, RefusalReason
from controller.domain.entry_buckets import rounded_up
from controller.domain.lanes.cooldowns import Pause
from controller.domain.lanes.evaluation_context import EvaluationContext


def answer(ground: EvaluationContext) -> tuple[Decision, ...]:
    """Return the rebuckets; evaluated only if there is no other action.

    A segment keeps its share of the topic's budget, rounded up, and the topic keeps places for its consumers and the
    next few.
    """
    changed_at = ground.situation.consumers_changed_at
    if ground.strict or not ground.shared_buckets or changed_at is None:
        return ()
    actions = _rebuckets(ground)
    cooldowns = ground.cooldowns
    pauses = (cooldowns.rebucket, cooldowns.split, cooldowns.merge, _idle_window(ground, changed_at))
    if not actions or any(ground.refuse_during(pause, Lane.CONSUMER, None) for pause in pauses):
        return ()
    return tuple(act for act in actions if not ground.refuse_busy(Lane.CONSUMER, act.segment_id))


def _rebuckets(ground: EvaluationContext) -> list[Rebucket]:
    policy, segments = ground.policy, max(1, ground.segments_net)
    minimum = min(-(-policy.entry_bucket_budget // segments), policy.entry_bucket_max_per_segment)
    spare = max(0, ground.count_places() - max(rounded_up(ground.consumers), minimum * segments))
    rebuckets = []
    for segment in sorted(ground.active, key=lambda s: (-s.bucket_count, s.segment_id)):
        places = ground.places_of(segment.bucket_count)
        kept = max(minimum, rounded_up(places - spare) if spare < places else 1)
        if segment.bucket_count >= 2 * kept:
            if segment.segment_id not in ground.busy:
                spare -= places - ground.places_of(kept)
            rebuckets.append(Rebucket(segment.segment_id, kept, "idle-buckets"))
    return rebuckets


def _idle_window(ground: EvaluationContext, changed_at: int) -> Pause:
    began = max(changed_at, ground.situation.history.last_rebucket_at or 0)
    ends_at = began + ground.policy.bucket_idle_seconds * 1000
    return Pause(RefusalReason.BUCKET_IDLE_WINDOW, "consumers_changed_at", began, ends_at)
