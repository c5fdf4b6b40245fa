"""Pravega's auto-scaling, restated from its `AutoScaleProcessor`, `SegmentAggregates` and `AutoScaleTask`.

Each segment has moving averages over 2, 5, 10 and 20 minutes, which begin with the segment. A segment is hot if the
first average is above five times the target rate, the second above twice or the third above once. A hot segment is
cut into as many equal parts as the largest of the three has targets, at least 2 and at most `scale_factor`. A segment
is cold if the first three are below the target and the last is below half of it. For 10 minutes after its creation a
segment is not reported as hot, and for 20 minutes not as cold. A cold segment marks itself as cold, and is merged
with those of its two neighbours that have the mark.

Omitted: the expiry of silent segments after 20 minutes, and the expiry of marks after 10 minutes, since a cold
segment marks itself again at every tick. The original averages every 5 s; the project's figures use 10 s.
"""

from __future__ import annotations

from functools import partial

from controller.backtest.averages import DIGITS
from controller.backtest.rivals import common
from controller.backtest.rule import Rule
from controller.domain.decision import Decision, Evaluation, Lane, Refusal, RefusalReason
from controller.domain.evaluation_input import EvaluationInput
from controller.domain.policy import AutoScalePolicy
from controller.domain.segment import Segment

AVERAGE_MINUTES = (2.0, 5.0, 10.0, 20.0)
_UP = (5.0, 2.0, 1.0)
_COLD = 0.5


COOLDOWN_SECONDS = 600
"""Age up to which a segment is not split. This and the following values are Pravega's defaults."""
COLD_AFTER_SECONDS = 1_200
"""Age up to which a segment is not merged."""
MERGED_AT_ONCE = 3
"""The largest number of segments that are merged into one."""


def rule(scale_factor: int = 2, policy: AutoScalePolicy | None = None) -> Rule:
    """Return Pravega as a rule under test. `scale_factor`, a setting of the stream: the largest number of parts of a
    split.
    """
    return Rule(
        f"pravega sf {scale_factor}",
        partial(decide, scale_factor=scale_factor),
        policy or AutoScalePolicy(),
        is_reactive=True,
        memory_ticks=0,
        average_minutes=AVERAGE_MINUTES,
        average_levels=((_UP[0], 1.0), (_UP[1], 1.0), (_UP[2],), (_COLD,)),
    )


def decide(situation: EvaluationInput, scale_factor: int) -> Evaluation:
    """Return splits of hot segments (an average above its factor of `_UP`), each into as many parts as the largest of the
    first three averages has capacities, rounded down, at least 2 and at most `scale_factor`, then recuts that join up to
    `MERGED_AT_ONCE` cold neighbours into one (the first three averages below the capacity, the last below `_COLD`), as far
    as the policy's minimum number of segments allows (`_merges`). A hot segment that is too young, of one hash, or beyond
    the limit of segments is refused. A segment without averages or in a running reshape is left unchanged, and so is a cold
    segment that is too young. The result is valid until the first of the hot or cold segments that are too young is old
    enough; without a time limit if there is none.
    """
    capacity = situation.policy.thresholds.split
    busy_segments, room = common.busy(situation), common.Room(situation)
    actions: list[Decision] = []
    refusals: list[Refusal] = []
    valid_until_ms: list[int] = []
    cold: list[Segment] = []
    for segment in situation.layout.active:
        averages = situation.recent_loads.get(segment.segment_id)
        if averages is None or segment.segment_id in busy_segments:
            continue
        uses = [round(common.use(average, capacity), DIGITS) for average in averages]
        age_ms = situation.now - segment.created_at_ms
        if any(average_use > factor for average_use, factor in zip(uses, _UP, strict=False)):
            parts = min(max(2, int(max(uses[:3]))), max(2, scale_factor))
            if age_ms <= COOLDOWN_SECONDS * 1000:
                refusals.append(_too_young(segment))
                valid_until_ms.append(segment.created_at_ms + COOLDOWN_SECONDS * 1000 + 1)
            elif split := room.split(segment, parts, "scale-up"):
                actions.append(split)
            else:
                refusals.append(room.refusal(segment))
        elif max(uses[:3]) < 1.0 and uses[3] < _COLD:
            if age_ms > COLD_AFTER_SECONDS * 1000:
                cold.append(segment)
            else:
                valid_until_ms.append(segment.created_at_ms + COLD_AFTER_SECONDS * 1000 + 1)
    actions += _merges(cold, situation)
    return Evaluation(tuple(actions), tuple(refusals), min(valid_until_ms, default=None))


def _too_young(segment: Segment) -> Refusal:
    """Return the refusal of a split that the segment's age forbids, with the end of the cooldown."""
    ends_at = segment.created_at_ms + COOLDOWN_SECONDS * 1000
    return Refusal(
        segment.segment_id,
        Lane.LOAD,
        RefusalReason.SPLIT_COOLDOWN,
        "created_at",
        segment.created_at_ms,
        ends_at,
        ends_at,
    )


def _merges(cold: list[Segment], situation: EvaluationInput) -> list[Decision]:
    """Return merges of runs of cold neighbours, divided from the left into groups of at most `MERGED_AT_ONCE`. A
    group is shortened so that the merges together do not go below the policy's minimum number of segments; no merge is
    returned if there are no more segments than the minimum. Neither splits of the same evaluation nor running reshapes
    count, so together with a running merge the topic may go below the minimum. `cold` is in the order of ranges.
    """
    removable = max(0, len(situation.layout.active) - situation.policy.min_segments)
    groups: list[list[Segment]] = []
    for segment in cold:
        is_adjacent = groups and groups[-1][-1].hash_range.is_adjacent_to(segment.hash_range)
        if is_adjacent and len(groups[-1]) < MERGED_AT_ONCE:
            groups[-1].append(segment)
        else:
            groups.append([segment])
    merges: list[Decision] = []
    for group in groups:
        merged = group[: removable + 1]
        if len(merged) > 1:
            merges.append(common.joined(merged, "scale-down"))
            removable -= len(merged) - 1
    return merges
