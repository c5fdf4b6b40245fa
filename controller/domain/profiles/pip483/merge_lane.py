"""The merge lane: the coldest pair of neighbours becomes one segment.

A pair is a candidate if both sides are below all four merge thresholds. It must meet the conditions of `merge_conditions`,
and of the pairs that meet them the coldest is merged.
"""

from __future__ import annotations

import math
from itertools import pairwise

from controller.domain.decision import Decision, Lane, Merge, Refusal, RefusalReason
from controller.domain.load_record import METRICS, LoadRecord
from controller.domain.profiles.evaluation_context import EvaluationContext
from controller.domain.profiles.pip483.merge_conditions import MergeConditions

_LANE = Lane.MERGE


def answer(context: EvaluationContext, earlier_actions: tuple[Decision, ...]) -> tuple[Decision, ...]:
    """Return the merge of one pair of neighbours, or no action. A segment is cold if all four rates of its load
    record are below their merge thresholds. A pair may merge if both sides are cold and the pair meets the conditions
    of `MergeConditions`. Of these pairs, the pair with the lowest sum of warmth (`_warmth`) merges; of equal sums,
    the lowest range.

    Every other pair of cold neighbours gets a refusal in the context. If the topic has more than its minimum number
    of segments, each cold segment without a cold neighbour gets a refusal as well (`_refuse_lone`).

    `earlier_actions` are the actions of earlier lanes in this evaluation. If there are any, nothing is merged, and
    each pair that may merge gets the refusal OTHER_ACT.
    """
    cold = _cold(context)
    touching = [
        low.hash_range.end + 1 == high.hash_range.start for low, high in pairwise(context.active)
    ]  # all pairs touch, unless a layout has a gap
    pairs = [i for i, is_touching in enumerate(touching) if is_touching and cold[i] and cold[i + 1]]
    if len(cold) > 1 and context.segments_low > context.policy.min_segments:
        _refuse_lone(context, cold, touching)
    mergeable = MergeConditions(context).passing(pairs) if pairs else []
    ids = [segment.segment_id for segment in context.active]
    if earlier_actions:
        for i in mergeable:
            context.refuse(Refusal(ids[i], _LANE, RefusalReason.OTHER_ACT, other_id=ids[i + 1]))
        return ()
    if not mergeable:
        return ()
    warmth = _warmth(context)
    best = min(mergeable, key=lambda i: warmth[i] + warmth[i + 1])
    lowest = warmth[best] + warmth[best + 1]
    for i in mergeable:
        if i != best:
            context.refuse(
                Refusal(
                    segment_id=ids[i],
                    lane=_LANE,
                    reason=RefusalReason.LOWER_SCORE,
                    metric="warmth",
                    value=warmth[i] + warmth[i + 1],
                    needed=lowest,
                    other_id=ids[i + 1],
                )
            )
    return (Merge(ids[best], ids[best + 1], "cold"),)


def _cold(context: EvaluationContext) -> list[LoadRecord | None]:
    """Return, for each active segment, its load record if all four rates are below their merge thresholds, otherwise
    None. The age of a record has no effect.
    """
    msg_in, byte_in, msg_out, byte_out = context.thresholds.merge.rates
    return [
        record
        if record is not None
        and (stats := record.stats).msg_rate_in < msg_in
        and stats.byte_rate_in < byte_in
        and stats.msg_rate_out < msg_out
        and stats.byte_rate_out < byte_out
        else None
        for record in context.records
    ]


def _refuse_lone(context: EvaluationContext, cold: list[LoadRecord | None], touching: list[bool]) -> None:
    """Add to the context a refusal of each cold segment that has neighbours, none of which is cold. The refusal names
    the neighbour that is closest to cold as `segment_id`, and the cold segment as `other_id`.

    The reason is NOT_COLD, with the metric of the neighbour that exceeds its merge threshold by the largest factor,
    the neighbour's rate in this metric (None if the rate was never measured) and the threshold. If the neighbour has
    no load record, the reason is NO_LOAD_RECORD.

    `cold` is the result of `_cold`. `touching[i]`: True if no gap separates the segments i and i + 1.
    """
    limits = context.thresholds.merge.rates
    touches_left = [False, *touching, False]
    for index, record in enumerate(cold):
        if record is None:
            continue
        neighbours = [i for i in (index - 1, index + 1) if touches_left[max(index, i)]]
        if not neighbours or any(cold[i] for i in neighbours):
            continue
        ratios = {i: _ratios(context.records[i], limits) for i in neighbours}
        nearest = min(neighbours, key=lambda i: max(ratios[i]))
        segment_id, other_id = context.active[nearest].segment_id, context.active[index].segment_id
        warm = context.records[nearest]
        if warm is None:
            context.refuse(Refusal(segment_id, _LANE, RefusalReason.NO_LOAD_RECORD, other_id=other_id))
            continue
        metric = ratios[nearest].index(max(ratios[nearest]))
        context.refuse(
            Refusal(
                segment_id=segment_id,
                lane=_LANE,
                reason=RefusalReason.NOT_COLD,
                metric=METRICS[metric],
                value=None if math.isnan(warm.stats.rates[metric]) else warm.stats.rates[metric],
                needed=limits[metric],
                other_id=other_id,
            )
        )


def _ratios(record: LoadRecord | None, limits: tuple[float, ...]) -> list[float]:
    """Return the four rates, each divided by its limit; infinity for a rate that was never measured. Without a record,
    return a single infinity.
    """
    if record is None:
        return [math.inf]
    return [
        math.inf if math.isnan(rate) else rate / limit
        for rate, limit in zip(record.stats.rates, limits, strict=True)
    ]


def _warmth(context: EvaluationContext) -> list[float]:
    """Return the warmth of each active segment: the sum of its four rates, each divided by its merge threshold; 0 without
    a record.

    Pulsar adds the raw rates instead, so that bytes outweigh messages, and so does this function under `strict_pulsar`.
    The warmth is used for cold segments only, whose thresholds are above 0.
    """
    if context.strict:  # The rates are added in sequence as Pulsar does, because `sum` rounds better than Java since Python 3.12.
        return [
            0.0
            if record is None
            else (stats := record.stats).msg_rate_in
            + stats.byte_rate_in
            + stats.msg_rate_out
            + stats.byte_rate_out
            for record in context.records
        ]
    msg_in, byte_in, msg_out, byte_out = (limit or 1.0 for limit in context.thresholds.merge.rates)
    return [
        0.0
        if record is None
        else (stats := record.stats).msg_rate_in / msg_in
        + stats.byte_rate_in / byte_in
        + stats.msg_rate_out / msg_out
        + stats.byte_rate_out / byte_out
        for record in context.records
    ]
