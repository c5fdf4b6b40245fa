"""Entry buckets that nobody has needed for long are given back, which Pulsar never does: lazily, since each time is a hand-over for
everybody who reads the segment.
"""

from __future__ import annotations

from controller.domain.decision import Decision, Lane, Rebucket, RefusalReason
from controller.domain.entry_buckets import rounded_up
from controller.domain.lanes.cooldowns import Pause
from controller.domain.lanes.ground import Ground


def answer(ground: Ground) -> tuple[Decision, ...]:
    """Return the acts; asked when there is nothing else to do.

    A segment keeps its share of the topic's budget, rounded up, and the topic keeps places for its consumers and the next few.
    """
    changed_at = ground.situation.consumers_changed_at
    if ground.strict or not ground.shared_buckets or changed_at is None:
        return ()
    acts = _acts(ground)
    cooldowns = ground.cooldowns
    pauses = (cooldowns.rebucket, cooldowns.split, cooldowns.merge, _idle_window(ground, changed_at))
    if not acts or any(ground.refuse_during(pause, Lane.CONSUMER, None) for pause in pauses):
        return ()
    return tuple(act for act in acts if not ground.refuse_busy(Lane.CONSUMER, act.segment_id))


def _acts(ground: Ground) -> list[Rebucket]:
    policy, segments = ground.policy, max(1, ground.segments_net)
    least = min(-(-policy.entry_bucket_budget // segments), policy.entry_bucket_max_per_segment)
    spare = max(0, ground.count_places() - max(rounded_up(ground.consumers), least * segments))
    acts = []
    for segment in sorted(ground.active, key=lambda one: (-one.bucket_count, one.segment_id)):
        places = ground.places_of(segment.bucket_count)
        kept = max(least, rounded_up(places - spare) if spare < places else 1)
        if segment.bucket_count >= 2 * kept:
            if segment.segment_id not in ground.busy:
                spare -= places - ground.places_of(kept)
            acts.append(Rebucket(segment.segment_id, kept, "idle-buckets"))
    return acts


def _idle_window(ground: Ground, changed_at: int) -> Pause:
    began = max(changed_at, ground.situation.history.last_rebucket_at or 0)
    ends_at = began + ground.policy.bucket_idle_seconds * 1000
    return Pause(RefusalReason.BUCKET_IDLE_WINDOW, "consumers_changed_at", began, ends_at)
