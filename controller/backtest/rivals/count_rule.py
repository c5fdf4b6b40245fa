"""The rule of the Kubernetes autoscaler applied to segments as replicas: an ideal for comparison, not a rival.

The number of segments is the load divided by a target use, rounded up; the largest such number of the last 300 s
counts. To reach it, the whole ring is cut into equal parts at no cost, which no system that seals and replaces
segments can do.
"""

from __future__ import annotations

import math

from controller.backtest.rivals import common
from controller.backtest.rule import Rule
from controller.domain.decision import Decision, Evaluation, Recut
from controller.domain.evaluation_input import EvaluationInput
from controller.domain.hash_range import FULL_RANGE
from controller.domain.policy import AutoScalePolicy

TARGET_USE = 0.7
"""Load per segment at which the rule aims, in capacities."""
WINDOW_SECONDS = 300
"""Time over which the largest load counts."""
TICK_SECONDS = 60
"""Seconds between two evaluations."""


def rule(policy: AutoScalePolicy | None = None) -> Rule:
    """Return the count rule as a rule under test, marked as an ideal: a reference, not a rival. None stands for the
    default policy.
    """
    return Rule(
        f"count {TARGET_USE:g}",
        decide,
        policy or AutoScalePolicy(),
        memory_ticks=WINDOW_SECONDS // TICK_SECONDS,
        is_ideal=True,
    )


def decide(situation: EvaluationInput) -> Evaluation:
    """Return a recut that replaces all segments by the desired number of equal ones: the largest total load of the
    remembered ticks, in capacities, divided by `TARGET_USE`, rounded up, within the policy's minimum and maximum number
    of segments. An empty evaluation if the number is right, whatever the boundaries, while a reshape is running, or without a
    measurement. All segments must remember the same number of ticks.
    """
    policy, active = situation.policy, situation.layout.active
    capacity = policy.thresholds.split
    ticks = [situation.recent_loads.get(segment.segment_id, ()) for segment in active]
    totals = [sum(common.use(stats, capacity) for stats in tick) for tick in zip(*ticks, strict=True)]
    if not totals or situation.in_flight:
        return Evaluation()
    target = math.ceil(max(totals) / TARGET_USE - 1e-9)
    target = max(policy.min_segments, 1, min(target, policy.max_segments))
    if target == len(active):
        return Evaluation()
    return Evaluation((_replace_all(tuple(segment.segment_id for segment in active), target),))


def _replace_all(ids: tuple[int, ...], parts: int) -> Decision:
    return Recut(ids, FULL_RANGE.equal_cuts(parts), "count")
