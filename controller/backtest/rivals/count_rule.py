"""The rule of the Kubernetes autoscaler, as if segments were replicas: an ideal to compare with, not a rival.

The number of segments is the load divided by a target use, rounded up, the largest such number of the last 300 s. To get
there the whole ring is cut into equal parts at no cost, which no system that seals and replaces segments can do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from controller.backtest.rivals import common
from controller.backtest.rule import Rule
from controller.domain.decision import Decision, Evaluation, Recut
from controller.domain.hash_range import FULL_RANGE
from controller.domain.policy import AutoScalePolicy
from controller.domain.situation import Situation


@dataclass(frozen=True, slots=True)
class Settings:
    """`tick_seconds` is how often a load is shown to it."""

    target_use: float = 0.7
    window_seconds: int = 300
    tick_seconds: int = 60


def rule(settings: Settings | None = None, policy: AutoScalePolicy | None = None) -> Rule:
    """The count rule as a rule under test."""
    settings = settings or Settings()
    return Rule(
        f"count {settings.target_use:g}",
        partial(decide, settings=settings),
        policy or AutoScalePolicy(),
        memory_ticks=settings.window_seconds // settings.tick_seconds,
        is_ideal=True,
    )


def decide(situation: Situation, settings: Settings) -> Evaluation:
    """All segments anew, where their number is not the one wanted; nothing while that is under way."""
    policy, active = situation.policy, situation.layout.active
    capacity = policy.thresholds.split
    ticks = [situation.recent_loads.get(segment.segment_id, ()) for segment in active]
    totals = [sum(common.use(stats, capacity) for stats in tick) for tick in zip(*ticks, strict=True)]
    if not totals or situation.in_flight:
        return Evaluation()
    wanted = math.ceil(max(totals) / settings.target_use - 1e-9)
    wanted = max(policy.min_segments, 1, min(wanted, policy.max_segments))
    if wanted == len(active):
        return Evaluation()
    return Evaluation((_anew(tuple(segment.segment_id for segment in active), wanted),))


def _anew(ids: tuple[int, ...], parts: int) -> Decision:
    return Recut(ids, FULL_RANGE.equal_cuts(parts), "count")
