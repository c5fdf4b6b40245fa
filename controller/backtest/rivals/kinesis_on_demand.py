"""Kinesis on-demand streams, restated from their documentation: capacity for twice the peak.

A shard that was above half of its limit on average over a minute is halved; all such shards are halved at once. The
change takes effect after 5 to 15 minutes (`actuation_seconds`). Capacity is kept for 30 days, so nothing is merged
within the days simulated. A shard counts from its creation.
"""

from __future__ import annotations

from controller.backtest.rivals import common
from controller.backtest.rule import Rule
from controller.domain.decision import Decision, Evaluation, Refusal
from controller.domain.evaluation_input import EvaluationInput
from controller.domain.policy import AutoScalePolicy

UP_AT = 0.5
"""Part of the capacity above which a shard is split, as documented."""


def rule(actuation_seconds: int = 300, policy: AutoScalePolicy | None = None) -> Rule:
    """Return Kinesis on-demand as a rule under test. `actuation_seconds`: time until a change takes effect, which the
    documentation gives as 'up to 15 minutes'.
    """
    return Rule(
        f"kinesis on-demand {actuation_seconds // 60} min",
        decide,
        policy or AutoScalePolicy(),
        memory_ticks=1,
        actuation_seconds=actuation_seconds,
    )


def decide(situation: EvaluationInput) -> Evaluation:
    """Return a split in two of each segment that is above `UP_AT` of its capacity at the last tick. A segment of one
    hash, or beyond the limit of segments, is refused; a segment without a record or in a running reshape is left
    unchanged. A segment with a record must have a remembered tick.
    """
    capacity = situation.policy.thresholds.split
    busy_segments, room = common.busy(situation), common.Room(situation)
    actions: list[Decision] = []
    refusals: list[Refusal] = []
    for segment in situation.layout.active:
        record = situation.loads.get(segment.segment_id)
        if record is None or segment.segment_id in busy_segments:
            continue
        (last,) = situation.recent_loads[segment.segment_id][-1:]
        if common.use(last, capacity) <= UP_AT:
            continue
        if split := room.split(segment, 2, "half-full"):
            actions.append(split)
        else:
            refusals.append(room.refusal(segment))
    return Evaluation(tuple(actions), tuple(refusals))
