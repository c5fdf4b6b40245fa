"""Measures the number of segments until each fits, if few keys have most of the load, and the actions in vain afterwards.

A thousand keys by Zipf's law with exponent 1.5 at random places of the ring, sixteen segments' worth of load that does not change for two
hours, thirty draws. `adaptive` decides each minute with exact key histograms, and without any; `midpoint` halves the hottest segment each
minute, as rules that cut at the midpoint do, while one is above capacity and wider than one hash. A segment fits if it is at or below its
capacity, or if one key alone is above the capacity. Prints one line of JSON.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from random import Random
from typing import Any

from benchmarks.machine import machine
from controller.domain.decision import sealed_by
from controller.domain.evaluation_input import TICKS_OF_MEMORY, Capabilities, EvaluationInput
from controller.domain.evaluator import decide
from controller.domain.hash_range import RING_SIZE
from controller.domain.key_sketch import bin_count
from controller.domain.layout import SegmentLayout
from controller.domain.load_record import LoadRecord, LoadStats
from controller.domain.policy import AutoScalePolicy
from controller.domain.reshape import plan_action
from controller.domain.segment import Segment

POLICY = AutoScalePolicy(profile="adaptive")
ANYTHING = Capabilities(max_children=64, recut=True, shared_buckets=True)
DRAWS, MINUTES, TOTAL, KEYS, EXPONENT = 30, 120, 16.0, 1_000, 1.5
MINUTE_MS = 60_000
Slots = Mapping[int, float]


def draw(seed: int) -> Slots:
    """Return the load by hash, in capacities."""
    random = Random(seed)
    shares = [1 / rank**EXPONENT for rank in range(1, KEYS + 1)]
    slots: dict[int, float] = {}
    for share in shares:
        at = random.randrange(RING_SIZE)
        slots[at] = slots.get(at, 0.0) + share / sum(shares) * TOTAL
    return slots


def within(segment: Segment, slots: Slots) -> dict[int, float]:
    """Return the hashes of a segment that have load."""
    return {at: load for at, load in slots.items() if segment.hash_range.contains(at)}


def fits(segment: Segment, slots: Slots) -> bool:
    """Return True if the segment is at or below capacity, or if one hash alone is above it, which no cut divides."""
    inside = within(segment, slots)
    load = sum(inside.values())
    return load <= 1 or max(inside.values()) > 0.95 * load


def by_adaptive(slots: Slots, *, sketched: bool) -> dict[str, float]:
    """Decide each minute for two hours. Return the segments and the minute at which all fitted, and the actions, of which `in_vain`
    concern only hot segments that fit.
    """
    layout = SegmentLayout.initial(1, now=0)
    memory: dict[int, tuple[LoadStats, ...]] = {}
    strikes: dict[int, int] = {}
    fitted_at, segments, in_vain, acts = None, 0, 0, 0
    for minute in range(1, MINUTES + 1):
        situation = _situation(layout, slots, memory, strikes, minute * MINUTE_MS, sketched=sketched)
        for act in decide(situation).decisions:
            acts += 1
            hot = [i for i in sealed_by(act) if sum(within(layout.segments[i], slots).values()) > 1]
            in_vain += bool(hot) and all(fits(layout.segments[i], slots) for i in hot)
            layout = layout.apply(plan_action(act, layout, max_buckets=64), minute * MINUTE_MS)
            _count_strikes(layout, slots, sealed_by(act), strikes)
        if fitted_at is None and all(fits(s, slots) for s in layout.active):
            fitted_at, segments = minute, len(layout.active)
    return {
        "segments": segments or len(layout.active),
        "minutes": fitted_at or MINUTES,
        "in_vain": in_vain,
        "acts": acts,
    }


def _count_strikes(
    layout: SegmentLayout, slots: Slots, sealed: tuple[int, ...], strikes: dict[int, int]
) -> None:
    """Update `strikes`: a part with at least four fifths of the load of the split segment gets one strike more than the segment, as the
    aggregation counts them.
    """
    if len(sealed) > 1:
        return
    whole = sum(within(layout.segments[sealed[0]], slots).values())
    for segment in layout.active:
        if sealed[0] in segment.parent_ids and sum(within(segment, slots).values()) >= 0.8 * whole:
            strikes[segment.segment_id] = strikes.get(sealed[0], 0) + 1


def _situation(
    layout: SegmentLayout,
    slots: Slots,
    memory: dict[int, tuple[LoadStats, ...]],
    strikes: Mapping[int, int],
    now: int,
    *,
    sketched: bool,
) -> EvaluationInput:
    loads, sketches = {}, {}
    for segment in layout.active:
        inside = within(segment, slots)
        stats = LoadStats(sum(inside.values()) * POLICY.split_msg_rate_in)
        loads[segment.segment_id] = LoadRecord(stats, now, None, now)
        memory[segment.segment_id] = (*memory.get(segment.segment_id, ()), stats)[-TICKS_OF_MEMORY:]
        counts = [0.0] * bin_count(segment.hash_range)
        for at, load in inside.items():
            counts[(at - segment.hash_range.start) * len(counts) // segment.hash_range.width] += load
        sketches[segment.segment_id] = tuple(counts)
    return EvaluationInput(
        layout=layout,
        loads=loads,
        recent_loads=memory,
        sketches=sketches if sketched else {},
        strikes=strikes,
        policy=POLICY,
        capabilities=ANYTHING,
        now=now,
    )


def by_midpoint(slots: Slots) -> dict[str, float]:
    """Halve the hottest segment each minute until none can be halved. A split that leaves more than 95 % of the load on one side is in
    vain.
    """
    layout, in_vain, acts = SegmentLayout.initial(1, now=0), 0, 0
    while True:
        hot: dict[int, float] = {}
        for segment in layout.active:
            load = sum(within(segment, slots).values())
            if load > 1 and segment.hash_range.width > 1:
                hot[segment.segment_id] = load
        if not hot or len(layout.active) >= POLICY.max_segments:
            return {"segments": len(layout.active), "minutes": acts, "in_vain": in_vain, "acts": acts}
        hottest = max(hot, key=hot.__getitem__)
        load = hot[hottest]
        layout = layout.split(hottest, acts)
        acts += 1
        shares = [sum(within(s, slots).values()) / load for s in layout.active if hottest in s.parent_ids]
        in_vain += max(shares) > 0.95


def main() -> None:
    """Measure and print the figures."""
    ways: dict[str, Any] = {
        "adaptive with sketches": lambda slots: by_adaptive(slots, sketched=True),
        "adaptive without": lambda slots: by_adaptive(slots, sketched=False),
        "midpoint": by_midpoint,
    }
    draws = [draw(seed) for seed in range(DRAWS)]
    means = {}
    for name, way in ways.items():
        rows = [way(slots) for slots in draws]
        means[name] = {key: round(statistics.mean(row[key] for row in rows), 2) for key in rows[0]}
    print(json.dumps({"benchmark": "hot_keys", "machine": machine(), "draws": DRAWS, "mean": means}))


if __name__ == "__main__":
    main()
