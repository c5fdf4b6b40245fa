"""Pravega's auto-scaling, restated from its `AutoScaleProcessor`, `SegmentAggregates` and `AutoScaleTask`.

Each segment has moving averages over 2, 5, 10 and 20 minutes, begun anew when it is made. It is hot when the first is
above five times the target rate, the second above twice or the third above once, and is cut into as many equal parts as
the largest of the three is targets, at least 2 and at most `scale_factor`. It is cold when the first three are below the
target and the last below half of it. Nothing is said of a segment for 10 minutes after it was made, nor for 20 of its
being cold. A cold segment marks itself as such, and is merged with those of its two neighbours that bear the mark.

Left out: the expiry of silent segments after 20 minutes, and that a mark holds for 10 minutes and is made anew as often:
what is cold marks itself anew at every tick. The original averages every 5 s; the figures are met with 10 s.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from controller.backtest.averages import DIGITS
from controller.backtest.rivals import common
from controller.backtest.rule import Rule
from controller.domain.decision import Decision, Evaluation, Lane, Refusal, RefusalReason
from controller.domain.policy import AutoScalePolicy
from controller.domain.segment import Segment
from controller.domain.situation import Situation

AVERAGE_MINUTES = (2.0, 5.0, 10.0, 20.0)
_UP = (5.0, 2.0, 1.0)
_COLD = 0.5


@dataclass(frozen=True, slots=True)
class Settings:
    """Pravega's defaults; `scale_factor` is the stream's own."""

    scale_factor: int = 2
    cooldown_seconds: int = 600
    cold_after_seconds: int = 1_200
    merged_at_once: int = 3


def rule(settings: Settings | None = None, policy: AutoScalePolicy | None = None) -> Rule:
    """Pravega as a rule under test."""
    settings = settings or Settings()
    return Rule(
        f"pravega sf {settings.scale_factor}",
        partial(decide, settings=settings),
        policy or AutoScalePolicy(),
        is_reactive=True,
        memory_ticks=0,
        average_minutes=AVERAGE_MINUTES,
        average_levels=((_UP[0], 1.0), (_UP[1], 1.0), (_UP[2],), (_COLD,)),
    )


def decide(situation: Situation, settings: Settings) -> Evaluation:
    """Splits first, each of a segment of its own, then merges of what is left."""
    capacity = situation.policy.thresholds.split
    taken, room = common.busy(situation), common.Room(situation)
    acts: list[Decision] = []
    refusals: list[Refusal] = []
    ages: list[int] = []
    cold: list[Segment] = []
    for segment in situation.layout.active:
        averages = situation.recent_loads.get(segment.segment_id)
        if averages is None or segment.segment_id in taken:
            continue
        uses = [round(common.use(average, capacity), DIGITS) for average in averages]
        age_ms = situation.now - segment.created_at_ms
        if any(used > times for used, times in zip(uses, _UP, strict=False)):
            parts = min(max(2, int(max(uses[:3]))), max(2, settings.scale_factor))
            if age_ms <= settings.cooldown_seconds * 1000:
                refusals.append(_too_young(segment, settings))
                ages.append(segment.created_at_ms + settings.cooldown_seconds * 1000 + 1)
            elif (more := room.take(parts - 1)) and segment.hash_range.width > 1:
                acts.append(common.equal_split(segment, more + 1, "scale-up"))
            else:
                refusals.append(room.refusal(segment.segment_id))
        elif max(uses[:3]) < 1.0 and uses[3] < _COLD:
            if age_ms > settings.cold_after_seconds * 1000:
                cold.append(segment)
            else:
                ages.append(segment.created_at_ms + settings.cold_after_seconds * 1000 + 1)
    acts += _merges(cold, situation, settings)
    return Evaluation(tuple(acts), tuple(refusals), min(ages, default=None))


def _too_young(segment: Segment, settings: Settings) -> Refusal:
    ends_at = segment.created_at_ms + settings.cooldown_seconds * 1000
    return Refusal(
        segment.segment_id,
        Lane.LOAD,
        RefusalReason.SPLIT_COOLDOWN,
        "created_at",
        segment.created_at_ms,
        ends_at,
        ends_at,
    )


def _merges(cold: list[Segment], situation: Situation, settings: Settings) -> list[Decision]:
    """Runs of cold neighbours, cut from the left into groups of at most so many."""
    left = len(situation.layout.active) - situation.policy.min_segments
    groups: list[list[Segment]] = []
    for segment in cold:
        follows = groups and groups[-1][-1].hash_range.is_adjacent_to(segment.hash_range)
        if follows and len(groups[-1]) < settings.merged_at_once:
            groups[-1].append(segment)
        else:
            groups.append([segment])
    found: list[Decision] = []
    for group in groups:
        merged = group[: left + 1]
        if len(merged) > 1:
            found.append(common.joined(merged, "scale-down"))
            left -= len(merged) - 1
    return found
