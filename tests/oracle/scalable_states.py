"""Random topics for the comparison with Pulsar's classes: seeded, and drawn where answers change.

Rates, ages and counts stand at a threshold, just below and just above it far more often than chance would
have them. A state is a situation under `strict_pulsar`, so its canonical text holds all that Pulsar looks at.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from controller.domain.evaluation_input import Capabilities, EvaluationInput, History
from controller.domain.layout import SegmentLayout
from controller.domain.load_record import LoadRecord, LoadStats
from controller.domain.policy import AutoScalePolicy

NOW = 1_000_000_000
MAX_BUCKETS = 65_536  # so high that no merge is refused for its buckets, which M1 does not have


@dataclass(frozen=True)
class ActionSequence:
    """A first layout and acts upon it, some of which cannot be done: names and arguments of Pulsar's methods."""

    first: SegmentLayout
    acts: tuple[tuple[str | int, ...], ...]


def trail(random: Random, length: int) -> ActionSequence:
    """A topic's life under midpoint splits, merges of any two and prunes in any order."""
    first = layout = SegmentLayout.initial(random.randint(1, 6), bucket_budget=1, now=NOW)
    deep = random.random() < 0.1
    acts: list[tuple[str | int, ...]] = []
    for step in range(20 if deep else random.randint(0, length)):
        act = _act(random, layout, deep)
        acts.append((*act, NOW + step) if act[0] != "pruneSegment" else act)
        layout = perform(layout, acts[-1]) or layout
    return ActionSequence(first, tuple(acts))


def perform(layout: SegmentLayout, act: Sequence[str | int]) -> SegmentLayout | None:
    """The same act on ours; None where it is refused."""
    from controller.domain.errors import CleaveError

    name, *ids = act
    numbers = [int(i) for i in ids]
    try:
        if name == "splitSegment":
            return layout.split(numbers[0], numbers[1])
        if name == "mergeSegments":
            return layout.merge(numbers[0], numbers[1], numbers[2])
        return layout.prune(numbers[0])
    except CleaveError:
        return None


def _act(random: Random, layout: SegmentLayout, deep: bool) -> tuple[str | int, ...]:
    active = layout.active
    chance = random.random()
    if deep and chance < 0.9:  # down to a range of one hash
        return "splitSegment", min(active, key=lambda s: s.hash_range.width).segment_id
    if chance < 0.05:
        return "splitSegment", random.randrange(layout.next_segment_id + 1)
    if chance < 0.1:
        any_two = [random.randrange(layout.next_segment_id + 1) for _ in range(2)]
        return "mergeSegments", *any_two
    if chance < 0.45 or len(active) == 1:
        return "splitSegment", random.choice(active).segment_id
    if chance < 0.8:
        left = random.randrange(len(active) - 1)
        pair = [active[left].segment_id, active[left + 1].segment_id]
        random.shuffle(pair)
        return "mergeSegments", *pair
    return "pruneSegment", random.choice(sorted(layout.segments))


def layout(random: Random) -> SegmentLayout:
    """A layout as lives lead to, at times with segments of one hash."""
    life = trail(random, 16)
    now = life.first
    for act in life.acts:
        now = perform(now, act) or now
    if random.random() < 0.2:
        wide = max(now.active, key=lambda s: s.hash_range.width)
        now = now.split(wide.segment_id, NOW, wide.hash_range.start + 1)
    if random.random() < 0.3:
        now = now.rebucket(random.choice(now.active).segment_id, random.choice((24, 48)), NOW)
    return now


def policy(random: Random) -> AutoScalePolicy:
    """Small thresholds that rates meet exactly, Pulsar's defaults at times, and now and then no valid policy."""
    split = [random.choice((8.0, 10.0, 40.0, 1e4)) for _ in range(4)]
    merge = [limit * random.choice((0.1, 0.4, 0.5, 0.9)) for limit in split]
    parameters = dict(
        zip(
            ("split_msg_rate_in", "split_byte_rate_in", "split_msg_rate_out", "split_byte_rate_out"),
            split,
            strict=True,
        )
    ) | dict(
        zip(
            ("merge_msg_rate_in", "merge_byte_rate_in", "merge_msg_rate_out", "merge_byte_rate_out"),
            merge,
            strict=True,
        )
    )
    if random.random() < 0.15:
        parameters = {}
    if random.random() < 0.05:
        parameters["split_byte_rate_out"] = math.inf
    if random.random() < 0.05:
        parameters["merge_msg_rate_in"] = random.choice(
            (0.0, -1.0, math.nan, parameters.get("split_msg_rate_in", 1e4))
        )
    least = random.choice((1, 1, 1, 2, 4, 0))
    return AutoScalePolicy(
        enabled=random.random() > 0.02,
        max_segments=random.choice((least, 3, 6, 8, 64, 64)),
        min_segments=least,
        max_dag_depth=random.choice((0, 1, 2, 3, 10, 10, -1)),
        split_cooldown_seconds=random.choice((0, 60, 60, 600)),
        merge_cooldown_seconds=random.choice((0, 60, 300)),
        merge_window_seconds=random.choice((0, 60, 300)),
        split_vs_rebucket_min_msg_rate_in=random.choice((0.0, 4.0, 1000.0)),
        entry_bucket_max_per_segment=MAX_BUCKETS,
        strict_pulsar=True,
        **parameters,
    )


def situation(random: Random, layout: SegmentLayout, policy: AutoScalePolicy) -> EvaluationInput:
    """One moment of a topic; a third of them on a data plane whose consumers share segments by buckets."""
    busy = random.random()
    loads = {
        segment.segment_id: _record(random, policy, busy)
        for segment in layout.active
        if random.random() > 0.08
    }
    segments = len(layout.active)
    consumers = {
        name: random.choice((0, 1, segments, segments + 1, segments + 3))
        for name in random.sample(("a", "b", "c"), random.choice((0, 0, 1, 1, 3)))
    }
    return EvaluationInput(
        layout=layout,
        loads=loads,
        stream_consumers=consumers,
        policy=policy,
        history=History(
            last_split_at=_last(random, policy.split_cooldown_seconds),
            last_merge_at=_last(random, policy.merge_cooldown_seconds),
            last_rebucket_at=_last(random, policy.rebucket_cooldown_seconds),
        ),
        capabilities=Capabilities(shared_buckets=random.random() < 0.33),
        now=NOW,
    )


def _record(random: Random, policy: AutoScalePolicy, busy: float) -> LoadRecord:
    thresholds = policy.thresholds
    rates = [
        _rate(random, split, merge, busy)
        for split, merge in zip(thresholds.split.rates, thresholds.merge.rates, strict=True)
    ]
    stats = LoadStats(*rates)
    window_ms = policy.merge_window_seconds * 1000
    modified_at = NOW - random.choice((0, window_ms - 1, window_ms, window_ms + 1, 3_600_000, 3_600_000))
    cold_since = None
    if thresholds.is_cold(stats) and random.random() > 0.03:  # new thresholds forget since when
        cold_since = modified_at - random.choice((0, 0, 0, window_ms))
    stale_ms = policy.load_stale_after_seconds * 1000
    observed_at = NOW - random.choice((0,) * 20 + (stale_ms, stale_ms + 1))
    return LoadRecord(stats, modified_at, cold_since, observed_at)


def _rate(random: Random, split: float, merge: float, busy: float) -> float:
    split = split if math.isfinite(split) else 1e9
    merge = merge if math.isfinite(merge) else 1.0
    if random.random() < 0.5:
        return 0.0
    if random.random() < busy * 0.3:
        return random.choice((split, math.nextafter(split, math.inf), split * 1.5, split * 2, merge))
    below = math.nextafter(merge, -math.inf)
    return max(0.0, random.choice((merge * 0.25, merge * 0.5, below, merge * random.random())))


def _last(random: Random, cooldown_seconds: int) -> int | None:
    cooldown_ms = cooldown_seconds * 1000
    return random.choice((None, None, NOW - cooldown_ms, NOW - cooldown_ms + 1, NOW - 3_600_000, NOW + 1))
