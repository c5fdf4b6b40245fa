"""YDB's auto-partitioning of topics, restated from `partition_scale_manager.cpp` and its documented settings.

A partition whose write speed was above 90 % of its limit for a stabilisation window of 300 s is halved; all such
partitions are halved in one transaction, up to the limit of partitions. Topics are never merged. A partition counts
from its creation. Omitted: YDB measures the speed more often than once per tick.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from controller.backtest.rivals import common
from controller.backtest.rule import Rule
from controller.domain.decision import Decision, Evaluation, Lane, Refusal, RefusalReason
from controller.domain.evaluation_input import EvaluationInput
from controller.domain.policy import AutoScalePolicy


@dataclass(frozen=True, slots=True)
class Settings:
    """YDB's defaults. `up_at`: part of the capacity above which a partition is split; `window_seconds`: time for
    which the load must stay above; `tick_seconds`: seconds between two evaluations.
    """

    up_at: float = 0.9
    window_seconds: int = 300
    tick_seconds: int = 60


def rule(settings: Settings | None = None, policy: AutoScalePolicy | None = None) -> Rule:
    """Return YDB as a rule under test. None stands for the default settings, and for the default policy."""
    settings = settings or Settings()
    return Rule(
        "ydb",
        partial(decide, settings=settings),
        policy or AutoScalePolicy(),
        memory_ticks=settings.window_seconds // settings.tick_seconds + 1,
    )


def decide(situation: EvaluationInput, settings: Settings) -> Evaluation:
    """Return a split in two of each segment that was above `up_at` of its capacity throughout the window. A segment
    that is above it for a shorter time, of one hash, or beyond the limit of segments is refused; a segment without a
    measurement or in a running reshape, or not above it at the last tick, is left unchanged without a refusal.
    """
    capacity = situation.policy.thresholds.split
    busy_segments, room = common.busy(situation), common.Room(situation)
    actions: list[Decision] = []
    refusals: list[Refusal] = []
    for segment in situation.layout.active:
        ticks = common.own_ticks(situation, segment, settings.tick_seconds * 1000)
        if not ticks or segment.segment_id in busy_segments:
            continue
        if common.use(ticks[-1], capacity) <= settings.up_at:
            continue
        is_young = situation.now - segment.created_at_ms < settings.window_seconds * 1000
        if is_young or not all(common.use(tick, capacity) > settings.up_at for tick in ticks):
            refusals.append(Refusal(segment.segment_id, Lane.LOAD, RefusalReason.SPLIT_COOLDOWN, "window"))
        elif split := room.split(segment, 2, "write-speed"):
            actions.append(split)
        else:
            refusals.append(room.refusal(segment))
    return Evaluation(tuple(actions), tuple(refusals))
