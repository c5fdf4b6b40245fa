"""The load lane splits the segment that is furthest above a split threshold.

A segment's score is the largest of its four rates divided by their thresholds; ratios are not added.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from controller.domain.decision import Decision, Lane, Refusal, RefusalReason, Split
from controller.domain.lanes.evaluation_context import EvaluationContext
from controller.domain.load import METRICS

REASONS = ("msgRateIn", "byteRateIn", "msgRateOut", "byteRateOut")
"""Pulsar's names of the metrics, in the order of `METRICS`; they are the reasons of splits."""


class _Hot(NamedTuple):
    position: int
    score: float
    metric: int


def answer(ground: EvaluationContext, acted: tuple[Decision, ...]) -> tuple[Decision, ...]:
    """Return a split of the hottest segment that can be split; refuse every other hot segment.

    If an earlier lane has chosen actions (`acted`), each hot segment that they leave unchanged is refused for this
    reason, and nothing is split.
    """
    split_already = {act.segment_id for act in acted if isinstance(act, Split)}
    ids = [segment.segment_id for segment in ground.active]
    splittable = [
        hot
        for hot in _hot(ground)
        if ids[hot.position] not in split_already and not _is_refused(ground, hot.position)
    ]
    if acted:
        for hot in splittable:
            ground.refuse(Refusal(ids[hot.position], Lane.LOAD, RefusalReason.OTHER_ACT))
        return ()
    if not splittable:
        return ()
    best = max(splittable, key=lambda hot: hot.score)
    for hot in splittable:
        if hot is not best:
            ground.refuse(
                Refusal(
                    segment_id=ids[hot.position],
                    lane=Lane.LOAD,
                    reason=RefusalReason.LOWER_SCORE,
                    metric=METRICS[hot.metric],
                    value=hot.score,
                    needed=best.score,
                )
            )
    return (ground.split(best.position, REASONS[best.metric]),)


def _hot(ground: EvaluationContext) -> list[_Hot]:
    """Return the segments with a score above 1, by range. One refusal for the topic counts the segments that have no
    load record yet.
    """
    msg_in, byte_in, msg_out, byte_out = ground.thresholds.split.rates
    hot = []
    missing = 0
    for position, record in enumerate(ground.records):
        if record is None:
            missing += 1
            continue
        stats = record.stats
        ratios = (
            stats.msg_rate_in / msg_in,
            stats.byte_rate_in / byte_in,
            stats.msg_rate_out / msg_out,
            stats.byte_rate_out / byte_out,
        )
        score = max(ratios)
        if math.isnan(score):  # the first rate was never measured, and no number is greater than NaN
            score = max((ratio for ratio in ratios if not math.isnan(ratio)), default=0.0)
        if score > 1:
            hot.append(_Hot(position, score, ratios.index(score)))
    if missing:
        ground.refuse(
            Refusal(
                segment_id=None,
                lane=Lane.LOAD,
                reason=RefusalReason.NO_LOAD_RECORD,
                metric="segments_without_record",
                value=missing,
                needed=0,
            )
        )
    return hot


def _is_refused(ground: EvaluationContext, index: int) -> bool:
    """Refuse the segment if it cannot be split, and return True. Reasons that do not end by waiting are checked first,
    so that the reported reason does not change by itself.
    """
    segment = ground.active[index]
    segment_id = segment.segment_id
    if ground.refuse_busy(Lane.LOAD, segment_id):
        return True
    if ground.segments_high >= ground.policy.max_segments:
        ground.refuse(
            Refusal(
                segment_id=segment_id,
                lane=Lane.LOAD,
                reason=RefusalReason.AT_MAX_SEGMENTS,
                metric="segments",
                value=ground.segments_high,
                needed=ground.policy.max_segments,
            )
        )
        return True
    if segment.hash_range.width == 1 and not ground.strict:
        ground.refuse(
            Refusal(
                segment_id=segment_id,
                lane=Lane.LOAD,
                reason=RefusalReason.WIDTH_ONE,
                metric="width",
                value=1,
                needed=2,
            )
        )
        return True
    return ground.refuse_stale(Lane.LOAD, index) or ground.refuse_during(
        ground.cooldowns.split, Lane.LOAD, segment_id
    )
