"""The load lane splits the segment that is furthest above a split threshold.

A segment's score is the largest of its four rates divided by their thresholds; ratios are not added.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from controller.domain.decision import Decision, Lane, Refusal, RefusalReason, Split
from controller.domain.load_record import METRICS
from controller.domain.profiles.evaluation_context import EvaluationContext

REASONS = ("msgRateIn", "byteRateIn", "msgRateOut", "byteRateOut")
"""Pulsar's names of the metrics, in the order of `METRICS`; they are the reasons of splits."""


class _Hot(NamedTuple):
    """A hot segment: its index in the context, its score, and the index of the metric with the score."""

    position: int
    score: float
    metric: int


def answer(context: EvaluationContext, earlier_actions: tuple[Decision, ...]) -> tuple[Decision, ...]:
    """Return one split at the midpoint, or no action. The split is of the hot segment (`_hot`) with the highest score
    among the hot segments that can be split; of equal scores, the lowest range. Every other hot segment gets a
    refusal in the context. If segments have no load record, the topic gets a refusal with the number of these
    segments, and a hot segment is split nevertheless.

    `earlier_actions` are the actions of earlier lanes in this evaluation. If there are any, nothing is split. Each
    hot segment that could be split then gets the refusal OTHER_ACT, except the segments that the earlier actions
    split.
    """
    split_already = {action.segment_id for action in earlier_actions if isinstance(action, Split)}
    ids = [segment.segment_id for segment in context.active]
    splittable = [
        hot
        for hot in _hot(context)
        if ids[hot.position] not in split_already and not _is_refused(context, hot.position)
    ]
    if earlier_actions:
        for hot in splittable:
            context.refuse(Refusal(ids[hot.position], Lane.LOAD, RefusalReason.OTHER_ACT))
        return ()
    if not splittable:
        return ()
    best = max(splittable, key=lambda hot: hot.score)
    for hot in splittable:
        if hot is not best:
            context.refuse(
                Refusal(
                    segment_id=ids[hot.position],
                    lane=Lane.LOAD,
                    reason=RefusalReason.LOWER_SCORE,
                    metric=METRICS[hot.metric],
                    value=hot.score,
                    needed=best.score,
                )
            )
    return (context.split(best.position, REASONS[best.metric]),)


def _hot(context: EvaluationContext) -> list[_Hot]:
    """Return the segments whose score, the largest of the four rates divided by their split thresholds, is above 1, in
    the order of their ranges. A rate that was never measured does not count. If segments have no load record, add a
    refusal of the topic with their number to the context.
    """
    msg_in, byte_in, msg_out, byte_out = context.thresholds.split.rates
    hot = []
    missing = 0
    for position, record in enumerate(context.records):
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
        context.refuse(
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


def _is_refused(context: EvaluationContext, index: int) -> bool:
    """Return True, and add a refusal of the segment at `index` to the context, if the segment cannot be split. The
    reasons are checked in this order: the segment is busy; the topic has its maximum number of segments; the range
    has one hash; the load record is stale; the split cooldown lasts. Reasons that do not end by waiting are checked
    first, so that the reported reason does not change by itself. Under `strict_pulsar`, the third and the fourth
    reason have no effect.

    Return False otherwise. A fresh load record that was checked limits the validity of the evaluation to the time at
    which the record becomes stale.
    """
    segment = context.active[index]
    segment_id = segment.segment_id
    if context.refuse_busy(Lane.LOAD, segment_id):
        return True
    if context.segments_high >= context.policy.max_segments:
        context.refuse(
            Refusal(
                segment_id=segment_id,
                lane=Lane.LOAD,
                reason=RefusalReason.AT_MAX_SEGMENTS,
                metric="segments",
                value=context.segments_high,
                needed=context.policy.max_segments,
            )
        )
        return True
    if segment.hash_range.width == 1 and not context.strict:
        context.refuse(
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
    return context.refuse_stale(Lane.LOAD, index) or context.refuse_during(
        context.cooldowns.split, Lane.LOAD, segment_id
    )
