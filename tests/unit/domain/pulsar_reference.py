"""Pulsar 5's evaluator (PIP-483 with PIP-486) written down as plainly as can be, to compare with.

Shares nothing with the lanes but the situation it reads. Where consumers cannot share buckets it is the
evaluator as it was before PIP-486: no bucket lane, so more consumers mean a split below the cap.
"""

from __future__ import annotations

from itertools import pairwise

from controller.domain.decision import Decision, Merge, Rebucket, Split
from controller.domain.evaluation_input import EvaluationInput
from controller.domain.segment import Segment
from tests.support.ancestry import merge_depth_by_ancestry

REASON = {
    "msg_rate_in": "msgRateIn",
    "byte_rate_in": "byteRateIn",
    "msg_rate_out": "msgRateOut",
    "byte_rate_out": "byteRateOut",
}


def pulsar_decides(s: EvaluationInput) -> tuple[Decision, ...]:
    return consumer_lane(s) or load_lane(s) or merge_lane(s)


def cooling(s: EvaluationInput, last: int | None, cooldown_seconds: int) -> bool:
    return last is not None and s.now - last < cooldown_seconds * 1000


def rate(s: EvaluationInput, segment: Segment, metric: str) -> float:
    load = s.loads.get(segment.segment_id)
    return getattr(load.stats, metric) if load else 0.0


def consumer_lane(s: EvaluationInput) -> tuple[Decision, ...]:
    active = s.layout.active
    most = max(s.stream_consumers.values(), default=0)
    if most <= len(active):
        return ()
    by_id = sorted(active, key=lambda segment: segment.segment_id)
    busiest = max(by_id, key=lambda segment: rate(s, segment, "msg_rate_in"))
    at_cap = len(active) >= s.policy.max_segments
    low = rate(s, busiest, "msg_rate_in") < s.policy.split_vs_rebucket_min_msg_rate_in
    if s.capabilities.shared_buckets and (at_cap or low):
        if most <= sum(segment.bucket_count for segment in active):
            return ()
        if cooling(s, s.history.last_rebucket_at, s.policy.rebucket_cooldown_seconds):
            return ()
        target = 1
        while target * len(active) < most:
            target *= 2
        target = min(target, s.policy.entry_bucket_max_per_segment)
        reason = "at-max-segments" if at_cap else "below-split-rate-floor"
        return tuple(
            Rebucket(segment.segment_id, target, reason) for segment in by_id if segment.bucket_count < target
        )
    if at_cap or cooling(s, s.history.last_split_at, s.policy.split_cooldown_seconds):
        return ()
    return (Split(busiest.segment_id, (), "consumer-count"),)


def load_lane(s: EvaluationInput) -> tuple[Decision, ...]:
    active = s.layout.active
    if len(active) >= s.policy.max_segments:
        return ()
    if cooling(s, s.history.last_split_at, s.policy.split_cooldown_seconds):
        return ()
    best, act = 1.0, None
    for segment in active:
        for metric, reason in REASON.items():
            score = rate(s, segment, metric) / getattr(s.policy, f"split_{metric}")
            if score > best:
                best, act = score, Split(segment.segment_id, (), reason)
    return (act,) if act else ()


def merge_lane(s: EvaluationInput) -> tuple[Decision, ...]:
    active = s.layout.active
    if len(active) <= s.policy.min_segments:
        return ()
    if cooling(s, s.history.last_merge_at, s.policy.merge_cooldown_seconds):
        return ()
    found = [
        (raw_sum(s, a) + raw_sum(s, b), a.segment_id, b.segment_id)
        for a, b in pairwise(active)
        if may_merge(s, a, b)
    ]
    if not found:
        return ()
    _, left_id, right_id = min(found, key=lambda pair: pair[0])
    return (Merge(left_id, right_id, "cold"),)


def may_merge(s: EvaluationInput, a: Segment, b: Segment) -> bool:
    depths = [merge_depth_by_ancestry(s.layout, x.segment_id) for x in (a, b)]
    if max(depths) >= s.policy.max_dag_depth:
        return False
    total = sum(segment.bucket_count for segment in s.layout.active)
    joined = a.bucket_count + b.bucket_count
    after = total - joined + min(joined, s.policy.entry_bucket_max_per_segment)
    if after < min(max(s.stream_consumers.values(), default=0), total):
        return False
    return is_cold(s, a) and is_cold(s, b)


def is_cold(s: EvaluationInput, segment: Segment) -> bool:
    load = s.loads.get(segment.segment_id)
    if load is None or s.now - load.modified_at < s.policy.merge_window_seconds * 1000:
        return False
    return all(rate(s, segment, metric) < getattr(s.policy, f"merge_{metric}") for metric in REASON)


def raw_sum(s: EvaluationInput, segment: Segment) -> float:
    return sum(rate(s, segment, metric) for metric in REASON)
