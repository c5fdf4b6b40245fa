"""YDB's auto-partitioning of topics, restated from `partition_scale_manager.cpp` and its documented settings.

A partition whose write speed was above 90 % of its limit for a stabilisation window of 300 s is halved; all such
partitions are halved in one transaction, up to the limit of partitions. Topics are never merged. A partition counts
from its creation. Omitted: YDB measures the speed more often than once per tick.
"""

from __future__ import annotations

from controller.backtest.rivals import common
from controller.backtest.rule import Rule
from controller.domain.decision import Decision, Evaluation, Lane, Refusal, RefusalReason
from controller.domain.evaluation_input import EvaluationInput
from controller.domain.policy import AutoScalePolicy

UP_AT = 0.9
"""Part of the capacity above which a partition is split. This and the window are YDB's defaults."""
WINDOW_SECONDS = 300
"""Time for which the load must stay above."""
TICK_SECONDS = 60
"""Seconds between two evaluations."""


def rule(policy: AutoScalePolicy | None = None) -> Rule:
    """Return YDB as a rule under test. None stands for the default policy."""
    return Rule(
        "ydb",
        decide,
        policy or AutoScalePolicy(),
        memory_ticks=WINDOW_SECONDS // TICK_SECONDS + 1,
    )


def decide(situation: EvaluationInput) -> Evaluation:
    """Return a split in two of each segment that is at least `WINDOW_SECONDS` old and was above `UP_AT` of its capacity at
    all remembered ticks of its own. A segment that is above it at the last tick but younger, or was not above it at an
    earlier tick, is refused, and so is a segment of one hash or beyond the limit of segments. A segment without a
    measurement or in a running reshape, or not above it at the last tick, is left unchanged without a refusal.
    """
    capacity = situation.policy.thresholds.split
    busy_segments, room = common.busy(situation), common.Room(situation)
    actions: list[Decision] = []
    refusals: list[Refusal] = []
    for segment in situation.layout.active:
        ticks = common.own_ticks(situation, segment, TICK_SECONDS * 1000)
        if not ticks or segment.segment_id in busy_segments:
            continue
        if common.use(ticks[-1], capacity) <= UP_AT:
            continue
        is_young = situation.now - segment.created_at_ms < WINDOW_SECONDS * 1000
        if is_young or not all(common.use(tick, capacity) > UP_AT for tick in ticks):
            refusals.append(Refusal(segment.segment_id, Lane.LOAD, RefusalReason.SPLIT_COOLDOWN, "window"))
        elif split := room.split(segment, 2, "write-speed"):
            actions.append(split)
        else:
            refusals.append(room.refusal(segment))
    return Evaluation(tuple(actions), tuple(refusals))
