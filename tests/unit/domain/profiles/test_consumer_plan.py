"""The consumer lane of `adaptive`: one plan for all consumers, which no other lane undoes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from controller.domain.decision import (
    Decision,
    Lane,
    Rebucket,
    RefusalReason,
    Split,
    lane_of,
    parts_of,
    sealed_by,
)
from controller.domain.evaluation_input import (
    TICKS_OF_MEMORY,
    Capabilities,
    EvaluationInput,
    History,
    LiveReshape,
)
from controller.domain.evaluator import decide
from controller.domain.layout import SegmentLayout
from controller.domain.load_record import LoadRecord, LoadStats
from controller.domain.policy import AutoScalePolicy
from controller.domain.profiles.consumer_plan import MOST_EQUAL_SHARES
from controller.domain.reshape import ReshapeKind, plan_action
from tests.unit.domain.situations import NOW, ago, topic

ADAPTIVE = AutoScalePolicy(
    profile="adaptive", split_msg_rate_in=10_000, split_vs_rebucket_min_msg_rate_in=1_000
)
SHARED = Capabilities(max_children=64, recut=True, shared_buckets=True)
ALONE = replace(SHARED, shared_buckets=False)
BROKERS = Capabilities(midpoint_only=True)
CONSUMERS = frozenset({Lane.CONSUMER})


def acts(situation: EvaluationInput) -> list[Decision]:
    """What the consumer lane says."""
    return list(decide(situation, CONSUMERS).decisions)


def evaluation_input(
    *rates: float,
    consumers: int,
    buckets: int = 1,
    capabilities: Capabilities = SHARED,
    policy: Mapping[str, Any] = MappingProxyType({}),
    **more: Any,
) -> EvaluationInput:
    """A topic of as many segments as rates; `policy` are parameters that differ."""
    return topic(
        *rates,
        consumers=consumers,
        buckets=buckets,
        capabilities=capabilities,
        policy=replace(ADAPTIVE, **policy),
        **more,
    )


@pytest.mark.parametrize(
    ("situation", "expected"),
    [
        (evaluation_input(0, consumers=4, buckets=4), []),
        (evaluation_input(0, consumers=5, buckets=4), [Rebucket(0, 8, "consumer-count")]),
        (evaluation_input(0, 0, 0, 0, consumers=7), [Rebucket(0, 4, "consumer-count")]),
        (evaluation_input(0, 300, 100, 0, consumers=5), [Rebucket(1, 2, "consumer-count")]),
        (evaluation_input(0, consumers=2, buckets=4, policy={"split_vs_rebucket_min_msg_rate_in": 0}),
         [Split(0, (32768,), "consumer-count")]),
        (evaluation_input(2_500, 100, consumers=3, buckets=4), []),
        (evaluation_input(3_100, 100, consumers=3, buckets=4), [Split(0, (16384,), "consumer-count")]),
        (evaluation_input(0, consumers=3, policy={"split_vs_rebucket_min_msg_rate_in": 0}),
         [Split(0, (21846, 43691), "consumer-count")]),
        (evaluation_input(2_500, consumers=8, buckets=2), [Split(0, (32768,), "consumer-count", buckets=4)]),
        (evaluation_input(9_000, consumers=8), [Split(0, tuple(range(8192, 65536, 8192)), "consumer-count")]),
        (evaluation_input(9_000, consumers=8, policy={"max_segments": 2}), [Split(0, (32768,), "consumer-count", buckets=4)]),
        (evaluation_input(0, 0, consumers=8, policy={"max_segments": 2}),
         [Rebucket(0, 8, "consumer-count")]),
        (evaluation_input(0, consumers=20, policy={"entry_bucket_max_per_segment": 8}),
         [Split(0, (21846, 43691), "consumer-count", buckets=8)]),
        (evaluation_input(0, consumers=200), [Split(0, (16384, 32768, 49152), "consumer-count", buckets=64)]),
        (evaluation_input(0, 0, consumers=4, capabilities=ALONE), [Split(0, (10923, 21846), "consumer-count")]),
        (evaluation_input(0, 0, consumers=4, capabilities=BROKERS),
         [Split(0, (), "consumer-count"), Split(1, (), "consumer-count")]),
    ],
    ids=["enough", "next-few", "one-of-four", "the-busiest", "segments-first", "not-justified", "justified", "no-floor", "both", "rate-justifies-all", "cap", "slow-at-cap",
         "small-buckets", "two-hundred", "alone", "broker-halves"],
)  # fmt: skip
def test_one_plan_serves_all(situation: EvaluationInput, expected: list[Decision]) -> None:
    assert acts(situation) == expected


@pytest.mark.parametrize("capabilities", [SHARED, ALONE])
@pytest.mark.parametrize(("segments", "consumers"), [(64, 65), (64, 200), (4, 50), (16, 300)])
def test_no_consumer_gets_a_small_part_of_an_equal_share(
    segments: int, consumers: int, capabilities: Capabilities
) -> None:
    """With fewest sealed segments alone, 139 of 200 consumers would share three of 64 segments, some without any key."""
    crowded = evaluation_input(
        *[0] * segments, consumers=consumers, capabilities=capabilities, policy={"max_segments": 1_000}
    )

    parts = {
        sealed_by(act)[0]: act.bucket_count if isinstance(act, Rebucket) else parts_of(act)
        for act in acts(crowded)
    }

    assert len(parts) < segments
    assert sum(parts.values()) + segments - len(parts) >= consumers
    assert max(parts.values()) <= 2 * MOST_EQUAL_SHARES * consumers / segments


@given(
    cuts=st.lists(st.integers(1, 65_535), min_size=1, max_size=12, unique=True),
    buckets=st.sampled_from([1, 4, 16]),
    per_segment=st.floats(0.1, 64),
)
def test_a_slow_segment_is_split_only_if_all_buckets_are_at_their_limit(
    cuts: list[int], buckets: int, per_segment: float
) -> None:
    """Segments of unequal widths once were split into as many children as the plan gave consumers to them."""
    layout = SegmentLayout.initial(1, bucket_budget=1, now=0).split(0, 0, tuple(sorted(cuts)))
    layout = layout.rebucket(layout.active[0].segment_id, buckets, now=0) if buckets > 1 else layout
    consumers = math.ceil(per_segment * len(layout.active))
    crowded = evaluation_input(*[0] * (len(cuts) + 1), layout=layout, consumers=consumers)

    buckets_of = {sealed_by(act)[0]: act.bucket_count for act in acts(crowded) if isinstance(act, Rebucket)}
    kept = sum(s.bucket_count for s in layout.active if s.segment_id not in buckets_of)

    assert len(buckets_of) == len(acts(crowded))
    assert kept + sum(buckets_of.values()) >= consumers


def test_the_busiest_segment_serves_as_many_consumers_as_its_load_has() -> None:
    """A segment with a tenth of the ring and nine tenths of the load."""
    whole = SegmentLayout.initial(1, bucket_budget=1, now=0)
    uneven = whole.split(0, 0, (6_554,))

    assert acts(evaluation_input(900, 100, layout=uneven, consumers=40)) == [
        Rebucket(1, 64, "consumer-count")
    ]


def test_an_act_for_load_delays_nothing() -> None:
    history = History(last_split_at=ago(1), last_merge_at=ago(1), last_rebucket_at=None)

    assert acts(evaluation_input(0, consumers=9, history=history, consumers_changed_at=NOW))


@pytest.mark.parametrize(("changed_ago", "acted_ago", "waits"), [
    (0.0, 3.0, 0.5), (0.4, 3.0, 0.1), (0.5, 3.0, None), (0.0, 9.8, 0.2), (0.0, 10.0, None), (4.0, 3.0, None),
])  # fmt: skip
def test_consumers_that_come_after_an_act_are_collected(
    changed_ago: float, acted_ago: float, waits: float | None
) -> None:
    history = History(last_consumer_act_at=ago(acted_ago))
    evaluation = decide(
        evaluation_input(0, consumers=9, history=history, consumers_changed_at=ago(changed_ago)), CONSUMERS
    )

    if waits is None:
        assert evaluation.decisions
        return
    [refusal] = evaluation.refusals
    assert refusal.reason is RefusalReason.CONSUMERS_JOINING
    assert evaluation.valid_until == refusal.not_before == NOW + round(waits * 1000)


def test_an_act_for_consumers_under_way_collects_those_that_come_meanwhile() -> None:
    act = LiveReshape(7, ReshapeKind.SPLIT, (0,), 2, ago(1), child_places=2, for_consumers=True)
    crowded = evaluation_input(0, 0, consumers=9, in_flight=(act,), consumers_changed_at=NOW)

    assert [one.reason for one in decide(crowded, CONSUMERS).refusals] == [RefusalReason.CONSUMERS_JOINING]
    for_load = replace(crowded, in_flight=(replace(act, for_consumers=False),))
    assert [sealed_by(one) for one in acts(for_load)] == [(1,)]


def test_a_split_for_load_keeps_the_places_that_consumers_need() -> None:
    hot = evaluation_input(30_000, consumers=7, buckets=7)

    [split] = decide(hot, frozenset({Lane.LOAD})).decisions
    [unneeded] = decide(replace(hot, stream_consumers={"orders": 2}), frozenset({Lane.LOAD})).decisions

    assert isinstance(split, Split)
    assert isinstance(unneeded, Split)
    assert len(split.at) == len(unneeded.at) == 3
    assert (split.buckets, unneeded.buckets) == (2, None)


@pytest.mark.parametrize(
    ("consumers", "limits", "sealed", "children"),
    [
        (1, {"entry_bucket_max_per_segment": 1, "split_vs_rebucket_min_msg_rate_in": 100_000}, 3, 2),
        (4, {"entry_bucket_max_per_segment": 1, "split_vs_rebucket_min_msg_rate_in": 100_000}, 2, 2),
        (4, {}, 2, 2),
        (0, {"min_segments": 4}, 2, 2),
    ],
    ids=["one-consumer", "no-more-buckets", "rate-justifies-all", "min-segments"],
)
def test_a_relief_that_would_make_fewer_segments_keeps_those_that_are_needed(
    consumers: int, limits: Mapping[str, Any], sealed: int, children: int
) -> None:
    whole = SegmentLayout.initial(1, bucket_budget=1, now=0)
    uneven = whole.split(0, 0, (32_768, 36_864, 40_960))
    situation = evaluation_input(
        12_000, 1_500, 1_500, 9_000, layout=uneven, consumers=consumers, policy=limits
    )

    [recut] = decide(situation, frozenset({Lane.LOAD})).decisions

    assert (len(sealed_by(recut)), parts_of(recut)) == (sealed, children)


def test_places_of_an_operation_under_way_count() -> None:
    under_way = LiveReshape(7, ReshapeKind.SPLIT, (0,), 2, ago(1), child_places=16)
    situation = evaluation_input(0, 0, consumers=17, in_flight=(under_way,), consumers_changed_at=ago(5))

    assert acts(situation) == []
    assert [sealed_by(act) for act in acts(replace(situation, stream_consumers={"orders": 18}))] == [(1,)]


def test_what_no_cap_allows_is_said() -> None:
    few = {"max_segments": 2, "entry_bucket_max_per_segment": 2}
    evaluation = decide(evaluation_input(0, consumers=9, policy=few), CONSUMERS)

    assert [act.buckets for act in evaluation.decisions if isinstance(act, Split)] == [2]
    assert [(one.reason, one.value, one.needed) for one in evaluation.refusals] == [
        (RefusalReason.AT_MAX_BUCKETS, 4, 9)
    ]


@pytest.mark.parametrize(
    ("capabilities", "max_segments", "refused"),
    [
        (BROKERS, 64, []),
        (replace(ALONE, max_children=4), 64, []),
        (BROKERS, 2, [(RefusalReason.AT_MAX_SEGMENTS, 2, 2)]),
        (ALONE, 4, [(RefusalReason.AT_MAX_SEGMENTS, 4, 4)]),
    ],
    ids=["halves", "four-children", "halves-up-to-the-maximum", "maximum"],
)
def test_the_maximum_is_the_reason_only_if_the_plan_reaches_it(
    capabilities: Capabilities, max_segments: int, refused: list[tuple[RefusalReason, int, int]]
) -> None:
    """Below the maximum the cuts of the data plane are the limit, and the next plan serves the rest."""
    crowded = evaluation_input(
        0, consumers=5, capabilities=capabilities, policy={"max_segments": max_segments}
    )

    evaluation = decide(crowded, CONSUMERS)

    assert [type(act) for act in evaluation.decisions] == [Split]
    assert [(one.reason, one.value, one.needed) for one in evaluation.refusals] == refused


@pytest.mark.parametrize("max_segments", [2, 3])
def test_more_buckets_than_are_allowed_now_serve_as_many_consumers(max_segments: int) -> None:
    """The busiest segment has 8 buckets, and the limit was lowered to 4 later: the other segment serves the rest."""
    layout = SegmentLayout.initial(2, bucket_budget=2, now=0).rebucket(0, 8, now=0)
    policy = {"max_segments": max_segments, "entry_bucket_max_per_segment": 4}

    evaluation = decide(evaluation_input(100, 0, layout=layout, consumers=10, policy=policy), CONSUMERS)

    assert evaluation.decisions == (Rebucket(1, 2, "consumer-count"),)
    assert evaluation.refusals == ()


def test_the_refusal_counts_the_places_of_buckets_that_children_inherit_above_the_limit() -> None:
    few = {"max_segments": 2, "entry_bucket_max_per_segment": 4}
    evaluation = decide(evaluation_input(0, consumers=65, buckets=64, policy=few), CONSUMERS)

    assert [(one.reason, one.value, one.needed) for one in evaluation.refusals] == [
        (RefusalReason.AT_MAX_BUCKETS, 64, 65)
    ]


@dataclass
class SimulatedTopic:
    """A topic with constant load and constant consumers, whose acts are carried out at once."""

    situation: EvaluationInput
    densities: tuple[float, ...]
    made: list[tuple[int, Decision]] = field(default_factory=list)
    tick: int = 0

    def run(self, ticks: int) -> None:
        """Decide and act once a minute."""
        for _ in range(ticks):
            self.tick += 1
            for act in decide(self.situation).decisions:
                self.made.append((self.tick, act))
                self._perform(act)
            self._pass_a_minute()

    def _perform(self, act: Decision) -> None:
        before, now = self.situation, self.situation.now
        planned = plan_action(act, before.layout, max_buckets=before.policy.entry_bucket_max_per_segment)
        history = before.history
        if isinstance(act, Split):
            history = replace(history, last_split_at=now)
        if isinstance(act, Rebucket):
            history = replace(history, last_rebucket_at=now)
        if lane_of(act) is Lane.CONSUMER:
            history = replace(history, last_consumer_act_at=now)
        self.situation = replace(before, layout=before.layout.apply(planned, now), history=history)
        self._measure()

    def _pass_a_minute(self) -> None:
        self.situation = replace(self.situation, now=self.situation.now + 60_000)
        self._measure()

    def _measure(self) -> None:
        before, width = self.situation, 65_536 // len(self.densities)
        loads, memory = {}, {}
        for segment in before.layout.active:
            stats = LoadStats(
                sum(
                    density
                    * max(
                        0,
                        min(segment.hash_range.end + 1, (slot + 1) * width)
                        - max(segment.hash_range.start, slot * width),
                    )
                    / width
                    for slot, density in enumerate(self.densities)
                )
            )
            loads[segment.segment_id] = LoadRecord(stats, before.now, None, before.now)
            ticks = before.recent_loads.get(segment.segment_id, ())
            memory[segment.segment_id] = (*ticks, stats)[-TICKS_OF_MEMORY:]
        self.situation = replace(before, loads=loads, recent_loads=memory)

    @property
    def places(self) -> int:
        """Consumers that can be served."""
        if not self.situation.capabilities.shared_buckets:
            return len(self.situation.layout.active)
        return sum(min(segment.bucket_count, 64) for segment in self.situation.layout.active)


@st.composite
def worlds(draw: st.DrawFn) -> SimulatedTopic:
    """Any mix of load, consumers, entry buckets, caps and floors."""
    densities = tuple(
        draw(st.lists(st.sampled_from([0.0, 50.0, 900.0, 4_000.0, 9_500.0]), min_size=8, max_size=8))
    )
    policy = replace(
        ADAPTIVE,
        min_segments=draw(st.sampled_from([1, 2])),
        max_segments=draw(st.sampled_from([2, 4, 16, 64])),
        split_vs_rebucket_min_msg_rate_in=draw(st.sampled_from([0.0, 1_000.0])),
        entry_bucket_max_per_segment=draw(st.sampled_from([1, 2, 8, 1024])),
    )
    layout = SegmentLayout.initial(
        draw(st.integers(1, 2)),
        bucket_budget=draw(st.sampled_from([1, 4])),
        max_buckets=policy.entry_bucket_max_per_segment,
        now=0,
    )
    situation = EvaluationInput(
        layout=layout,
        loads={},
        stream_consumers={"orders": draw(st.sampled_from([0, 1, 3, 7, 9, 33, 50, 200]))},
        policy=policy,
        capabilities=draw(st.sampled_from([SHARED, ALONE])),
        consumers_changed_at=NOW - 1_000,
        now=NOW,
    )
    world = SimulatedTopic(situation, densities)
    world._measure()
    return world


def most_places(world: SimulatedTopic) -> int:
    """Consumers that the caps allow."""
    policy = world.situation.policy
    each = min(policy.entry_bucket_max_per_segment, 64) if world.situation.capabilities.shared_buckets else 1
    return policy.max_segments * each


@given(world=worlds())
def test_every_consumer_that_the_caps_allow_is_served_by_two_acts_at_most(world: SimulatedTopic) -> None:
    consumers = max(world.situation.stream_consumers.values())
    world.run(3)
    note(f"{world.made}")

    assert world.places >= min(consumers, most_places(world))
    times = {tick for tick, act in world.made if lane_of(act) is Lane.CONSUMER}
    assert len(times) <= 2


@given(world=worlds())
def test_with_constant_load_and_consumers_nothing_more_is_done_after_settling(world: SimulatedTopic) -> None:
    consumers = max(world.situation.stream_consumers.values())
    world.run(240)
    settled = len(world.made)
    world.run(120)
    note(f"{world.made}")

    assert world.made[settled:] == []
    assert world.places >= min(consumers, most_places(world))


def test_a_rate_around_a_whole_number_of_segments_adds_and_removes_none_in_turns() -> None:
    """2,000 messages a second and 1 % more or less, of which 1,000 justify a segment, and two consumers."""
    layout = SegmentLayout.initial(1, bucket_budget=1, now=0)
    situation = EvaluationInput(
        layout=layout,
        loads={},
        stream_consumers={"orders": 2},
        policy=ADAPTIVE,
        capabilities=SHARED,
        consumers_changed_at=NOW - 1_000,
        now=NOW,
    )
    world = SimulatedTopic(situation, (250.0,) * 8)
    world._measure()
    for tick in range(240):
        world.densities = (252.5 if tick % 2 else 247.5,) * 8
        world.run(1)

    assert [type(act) for _, act in world.made] == [Split]
