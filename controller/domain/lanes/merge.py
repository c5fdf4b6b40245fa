"""The merge lane: the coldest pair of neighbours becomes one segment.

A pair is a candidate if both sides are below all four merge thresholds. It must meet the conditions of `merge_gates`,
and of the pairs that meet them the coldest is merged.
"""

from __future__ import annotations

import math
from itertools import pairwise

from controller.domain.decision import Decision, Lane, Merge, Refusal, RefusalReason
from controller.domain.lanes.evaluation_context import EvaluationContext
from controller.domain.lanes.merge_gates import MergeGates
from controller.domain.load import METRICS, LoadRecord

_LANE = Lane.MERGE


def answer(ground: EvaluationContext, acted: tuple[Decision, ...]) -> tuple[Decision, ...]:
    """Return the merge of the coldest pair that may merge; refuse every other cold pair."""
    cold = _cold(ground)
    touching = [
        low.hash_range.end + 1 == high.hash_range.start for low, high in pairwise(ground.active)
    ]  # all pairs touch, unless a layout has a gap
    pairs = [i for i, is_touching in enumerate(touching) if is_touching and cold[i] and cold[i + 1]]
    if len(cold) > 1 and ground.segments_low > ground.policy.min_segments:
        _refuse_lone(ground, cold, touching)
    mergeable = MergeGates(ground).passing(pairs) if pairs else []
    ids = [segment.segment_id for segment in ground.active]
    if acted:
        for i in mergeable:
            ground.refuse(Refusal(ids[i], _LANE, RefusalReason.OTHER_ACT, other_id=ids[i + 1]))
        return ()
    if not mergeable:
        return ()
    warmth = _warmth(ground)
    best = min(mergeable, key=lambda i: warmth[i] + warmth[i + 1])
    lowest = warmth[best] + warmth[best + 1]
    for i in mergeable:
        if i != best:
            ground.refuse(
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


def _cold(ground: EvaluationContext) -> list[LoadRecord | None]:
    """Return the records that are below all merge thresholds, None for the other segments; the age of a record has no
    effect.
    """
    msg_in, byte_in, msg_out, byte_out = ground.thresholds.merge.rates
    return [
        record
        if record is not None
        and (stats := record.stats).msg_rate_in < msg_in
        and stats.byte_rate_in < byte_in
        and stats.msg_rate_out < msg_out
        and stats.byte_rate_out < byte_out
        else None
        for record in ground.records
    ]


def _refuse_lone(ground: EvaluationContext, cold: list[LoadRecord | None], touching: list[bool]) -> None:
    """Refuse each cold segment without a cold neighbour. The refusal names the neighbour that is closest to cold."""
    limits = ground.thresholds.merge.rates
    touches_left = [False, *touching, False]
    for index, record in enumerate(cold):
        if record is None:
            continue
        neighbours = [i for i in (index - 1, index + 1) if touches_left[max(index, i)]]
        if not neighbours or any(cold[i] for i in neighbours):
            continue
        ratios = {i: _ratios(ground.records[i], limits) for i in neighbours}
        nearest = min(neighbours, key=lambda i: max(ratios[i]))
        segment_id, other_id = ground.active[nearest].segment_id, ground.active[index].segment_id
        warm = ground.records[nearest]
        if warm is None:
            ground.refuse(Refusal(segment_id, _LANE, RefusalReason.NO_LOAD_RECORD, other_id=other_id))
            continue
        worst = ratios[nearest].index(max(ratios[nearest]))
        ground.refuse(
            Refusal(
                segment_id=segment_id,
                lane=_LANE,
                reason=RefusalReason.NOT_COLD,
                metric=METRICS[worst],
                value=None if math.isnan(warm.stats.rates[worst]) else warm.stats.rates[worst],
                needed=limits[worst],
                other_id=other_id,
            )
        )


def _ratios(record: LoadRecord | None, limits: tuple[float, ...]) -> list[float]:
    """Return the rates divided by the limits. A rate that was never measured counts as farthest from cold."""
    if record is None:
        return [math.inf]
    return [
        math.inf if math.isnan(rate) else rate / limit
        for rate, limit in zip(record.stats.rates, limits, strict=True)
    ]


def _warmth(ground: EvaluationContext) -> list[float]:
    """Return each segment's warmth: the sum of its four rates, each divided by its merge threshold.

    Pulsar adds the raw rates instead, so that bytes outweigh messages; so does `strict_pulsar`. The warmth is used
    for cold segments only, whose thresholds are above 0.
    """
    if ground.strict:  # The rates are added in sequence as Pulsar does, because `sum` rounds better than Java since Python 3.12.
        return [
            0.0
            if record is None
            else (stats := record.stats).msg_rate_in
            + stats.byte_rate_in
            + stats.msg_rate_out
            + stats.byte_rate_out
            for record in ground.records
        ]
    msg_in, byte_in, msg_out, byte_out = (limit or 1.0 for limit in ground.thresholds.merge.rates)
    return [
        0.0
        if record is None
        else (stats := record.stats).msg_rate_in / msg_in
        + stats.byte_rate_in / byte_in
        + stats.msg_rate_out / msg_out
        + stats.byte_rate_out / byte_out
        for record in ground.records
    ]
