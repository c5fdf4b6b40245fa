"""What the profile `adaptive` decides about a topic, and what it says of the rest."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.domain.decision import (
    Decision,
    Evaluation,
    Lane,
    Merge,
    Rebucket,
    Recut,
    Refusal,
    RefusalReason,
    Split,
    parts_of,
    sealed_by,
)
from controller.domain.evaluation_input import TICKS_OF_MEMORY, Capabilities, EvaluationInput, LiveReshape
from controller.domain.evaluator import code_version, decide
from controller.domain.hash_range import HashRange
from controller.domain.key_sketch import bin_count
from controller.domain.layout import SegmentLayout
from controller.domain.load_record import LoadRecord, LoadStats
from controller.domain.policy import AutoScalePolicy, violations
from controller.domain.profiles.adaptive import SETTLE_TICKS
from controller.domain.profiles.unsplittable import MOST_STRIKES, STOP_TICKS
from controller.domain.reshape import ReshapeKind, plan_action
from controller.domain.segment import Segment
from tests.unit.domain.situations import NOW, SMALL, record, situations, topic

POLICY = AutoScalePolicy(profile="adaptive")
CAPACITY = POLICY.split_msg_rate_in
ANYTHING = Capabilities(max_children=64, recut=True, shared_buckets=True)
MINUTE = 60_000
SETTLE_MS, STOP_MS = SETTLE_TICKS * MINUTE, STOP_TICKS * MINUTE


def ring(*loads: float, ticks: int = 1, policy: AutoScalePolicy = POLICY, **given: Any) -> EvaluationInput:
    """Segments of equal width with these loads, as shares of a segment's capacity, for so many ticks."""
    rates = [load * CAPACITY for load in loads]
    known = topic(*rates, policy=policy, capabilities=given.pop("capabilities", ANYTHING), **given)
    memory = {i: (LoadStats(rate),) * ticks for i, rate in enumerate(rates)}
    return replace(known, recent_loads=memory)


def reasons(evaluation: Evaluation) -> dict[int | None, RefusalReason]:
    return {refusal.segment_id: refusal.reason for refusal in evaluation.refusals}


def test_a_burst_becomes_as_many_segments_as_carry_it_in_one_act() -> None:
    [act] = decide(ring(51.2)).decisions

    assert isinstance(act, Split)
    assert (act.segment_id, len(act.at) + 1, act.reason) == (0, 57, "msgRateIn")
    assert act.at == HashRange(0, 65535).equal_cuts(57)


def test_the_metric_that_is_furthest_above_is_the_reason() -> None:
    [act] = decide(topic(LoadStats(100.0, 60e6, 100.0, 9e8), policy=POLICY, capabilities=ANYTHING)).decisions

    assert act.reason == "byteRateOut"


@pytest.mark.parametrize("first", [-1, float("nan")])
def test_a_metric_that_was_not_measured_is_not_the_reason(first: float) -> None:
    load = LoadRecord(LoadStats(first, 1e9, 0, 0), NOW, None, NOW)
    [act] = decide(replace(topic(10.0, policy=POLICY, capabilities=ANYTHING), loads={0: load})).decisions

    assert act.reason == "byteRateIn"


def test_mild_overload_is_borne_until_it_has_cost_as_much_as_a_reshape() -> None:
    """20 x 60 x 0.1 segment-s a tick, against 7,800 / 4 for a quarter of the ring and 60 for one segment more."""
    calm = decide(ring(1.1, 0.85, 0.85, 0.85, ticks=16))
    due = decide(ring(1.1, 0.85, 0.85, 0.85, ticks=17))

    assert calm.decisions == ()
    [refusal] = calm.refusals
    assert (refusal.segment_id, refusal.lane, refusal.reason) == (
        0,
        Lane.LOAD,
        RefusalReason.TOLERATED_OVERLOAD,
    )
    assert (refusal.value, refusal.needed) == (pytest.approx(1_920), 2_010)
    assert calm.valid_until == NOW + MINUTE
    assert [act.segment_id for act in due.decisions if isinstance(act, Split)] == [0]


def test_above_the_tolerance_relief_comes_at_once() -> None:
    assert decide(ring(1.16, 0.85, 0.85, 0.85)).decisions
    assert (
        decide(ring(1.16, 0.85, 0.85, 0.85, policy=replace(POLICY, overload_tolerance=0.2))).decisions == ()
    )


@pytest.mark.parametrize("beside", [(3,), (3, 4)], ids=["split", "recut"])
def test_what_was_made_too_small_a_moment_ago_is_not_tolerated(beside: tuple[int, ...]) -> None:
    assert decide(mildly_hot(SETTLE_MS, beside)).decisions
    assert decide(mildly_hot(SETTLE_MS, beside)).valid_until == NOW + 1
    assert decide(mildly_hot(SETTLE_MS + 1, beside)).decisions == ()


def test_what_was_given_other_entry_buckets_or_repaired_a_moment_ago_is_tolerated() -> None:
    assert decide(mildly_hot(0, (4,))).decisions == ()


def mildly_hot(age_ms: int, beside: tuple[int, ...]) -> EvaluationInput:
    """A segment of this age, whose parent is 3, and another with the parents `beside`."""
    layout = SegmentLayout.from_segments(
        5,
        10,
        (
            Segment(8, HashRange(0, 32767), parent_ids=(3,), created_epoch=5, created_at_ms=NOW - age_ms),
            Segment(9, HashRange(32768, 65535), parent_ids=beside, created_epoch=5),
        ),
    )
    return topic(1.05 * CAPACITY, 0.8 * CAPACITY, layout=layout, policy=POLICY, capabilities=ANYTHING)


def test_capacity_is_given_back_when_waiting_has_cost_more_than_sealing() -> None:
    waits = decide(ring(0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2, ticks=5))
    acts = decide(ring(0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2, ticks=45)).decisions

    assert waits.decisions == ()
    assert {r.reason for r in waits.refusals} == {RefusalReason.SAVING_BELOW_PRICE}
    assert all(r.value is not None and r.needed is not None and r.value <= r.needed for r in waits.refusals)
    assert acts == (Recut((0, 1, 2, 3), (), "cold"), Recut((4, 5, 6, 7), (), "cold"))


def test_segments_that_a_person_keeps_apart_are_in_no_act_with_others() -> None:
    since, until = NOW - MINUTE, NOW + 119 * MINUTE
    waits = replace(ring(0.2, 0.2, 0.2, 0.2, ticks=45), kept={1: (since, until)})
    free = replace(ring(0.2, 0.2, 0.2, 0.2, ticks=45), kept={1: (since, NOW)})

    evaluation = decide(waits)
    assert evaluation.decisions == (Merge(2, 3, "cold"),)
    assert evaluation.refusals == (
        Refusal(1, Lane.MERGE, RefusalReason.KEPT_APART, "kept_since", since, until, until, 0),
    )
    assert {sealed_by(act) for act in decide(free).decisions} == {(0, 1), (2, 3)}


def test_a_kept_segment_that_is_hot_is_split_by_itself() -> None:
    alone = replace(ring(1.5, 0.05, 0.05, 0.05), kept={0: (NOW - MINUTE, NOW + 3)})

    assert [sealed_by(act) for act in decide(alone).decisions] == [(0,)]
    assert decide(alone).valid_until == NOW + 3


def test_cold_segments_are_not_cut_anew_so_that_one_of_them_is_hot() -> None:
    """Three segments whose load fits into two, but not where cuts of equal width would put it."""
    cheap = replace(POLICY, reseal_price_segment_seconds=500.0)

    evaluation = decide(ring(0.4, 0.6, 0.75, ticks=45, policy=cheap))

    assert evaluation.decisions == ()
    assert RefusalReason.WOULD_SPLIT_AGAIN in reasons(evaluation).values()
    assert [parts_of(act) for act in decide(ring(0.58, 0.58, 0.58, ticks=45, policy=cheap)).decisions] == [2]


def test_two_neighbours_that_become_one_are_a_merge() -> None:
    assert decide(ring(0.4, 0.4, 0.89, 0.89, ticks=45, policy=replace(POLICY, reseal_price_segment_seconds=4_000))).decisions == (
        Merge(0, 1, "cold"),
    )  # fmt: skip


def test_several_acts_on_disjoint_segments_are_made_at_once_those_that_relieve_first() -> None:
    acts = decide(ring(0.1, 0.1, 0.1, 0.1, 1.5, 0.85, 6.0, 0.85, ticks=45)).decisions

    assert [sealed_by(act) for act in acts] == [(6,), (4,), (0, 1, 2, 3)]
    assert [act.reason for act in acts] == ["msgRateIn", "msgRateIn", "cold"]


@pytest.mark.parametrize(("lane", "sealed"), [(Lane.LOAD, [(4,)]), (Lane.MERGE, [(0, 1, 2, 3)])])
def test_a_lane_that_is_not_asked_adds_nothing(lane: Lane, sealed: list[tuple[int, ...]]) -> None:
    evaluation = decide(ring(0.1, 0.1, 0.1, 0.1, 1.5, 0.8, 0.8, 0.8, ticks=45), {lane})

    assert [sealed_by(act) for act in evaluation.decisions] == sealed
    assert {refusal.lane for refusal in evaluation.refusals} <= {lane}


def test_a_segment_nobody_has_reported_lately_is_in_no_act_and_says_so() -> None:
    silent = record(0.1 * CAPACITY, POLICY, observed_at=NOW - 300_001)
    loads = [0.1 * CAPACITY] * 4
    policy = replace(POLICY, reseal_price_segment_seconds=5_000)
    memory = {i: (LoadStats(0.1 * CAPACITY),) * 45 for i in range(4)}

    heard = replace(topic(*loads, policy=policy, capabilities=ANYTHING), recent_loads=memory)
    stale = replace(topic(*loads[:3], silent, policy=policy, capabilities=ANYTHING), recent_loads=memory)
    missing = replace(topic(*loads[:3], None, policy=policy, capabilities=ANYTHING), recent_loads=memory)

    assert decide(heard).decisions == (Recut((0, 1, 2, 3), (), "cold"),)
    assert decide(stale).decisions == decide(missing).decisions == (Recut((0, 1, 2), (), "cold"),)
    assert reasons(decide(stale))[3] is RefusalReason.STALE_LOAD
    assert reasons(decide(missing))[3] is RefusalReason.NO_LOAD_RECORD


def test_what_is_in_an_operation_is_left_to_it() -> None:
    busy = (LiveReshape(7, ReshapeKind.SPLIT, (0,), 2, NOW - 1_000),)
    evaluation = decide(ring(2.0, 0.8, 0.8, 2.0, in_flight=busy))

    assert [sealed_by(act) for act in evaluation.decisions] == [(3,)]
    assert reasons(evaluation)[0] is RefusalReason.IN_FLIGHT


def test_the_cap_is_filled_up_with_what_is_hottest() -> None:
    capped = replace(POLICY, max_segments=6)
    acts = decide(ring(2.5, 0.9, 9.0, 0.9, policy=capped)).decisions

    assert [(sealed_by(act), len(act.at) + 1) for act in acts if isinstance(act, Split)] == [((2,), 3)]
    assert reasons(decide(ring(2.5, 0.9, 9.0, 0.9, policy=capped)))[0] is RefusalReason.AT_MAX_SEGMENTS
    full = decide(ring(2.5, 0.9, 9.0, 0.9, policy=replace(POLICY, max_segments=4)))
    assert full.decisions == ()
    assert {reasons(full)[0], reasons(full)[2]} == {RefusalReason.AT_MAX_SEGMENTS}


def test_at_the_cap_segments_may_carry_a_little_more() -> None:
    assert [len(a.at) + 1 for a in decide(ring(2.0, 0.8)).decisions if isinstance(a, Split)] == [3]
    tight = replace(POLICY, max_segments=3)
    assert [
        len(a.at) + 1 for a in decide(ring(2.0, 0.8, policy=tight)).decisions if isinstance(a, Split)
    ] == [2]


@pytest.mark.parametrize("most", [16, 10, 9, 8, 4, 1])
def test_a_topic_above_the_cap_gives_capacity_back_like_any_other(most: int) -> None:
    capped = replace(POLICY, max_segments=most)

    assert [sealed_by(act) for act in decide(ring(*[0.0] * 10, ticks=45, policy=capped)).decisions] == [
        (2, 3, 4, 5),
        (6, 7, 8, 9),
        (0, 1),
    ]


def test_above_the_cap_neighbours_are_still_divided_anew_into_as_many() -> None:
    cheap = replace(POLICY, reseal_price_segment_seconds=100.0, max_segments=3)
    known = ring(1.7, 0.05, 0.88, 0.88, policy=cheap)

    [act] = decide(sketched(known, (1, 1, 1, 1), (1, 1, 1, 1), (1,), (1,))).decisions

    assert (sealed_by(act), parts_of(act)) == ((0, 1), 2)


def test_at_the_cap_a_hot_segment_and_its_neighbour_are_divided_anew_where_a_split_would_be_cheaper() -> None:
    layout = SegmentLayout.initial(1, now=0).split(0, 0, (0x4000, 0x6000))
    loads = [load * CAPACITY for load in (1.2, 0.6, 0.85)]

    def at_most(segments: int) -> list[tuple[tuple[int, ...], int]]:
        capped = replace(POLICY, max_segments=segments)
        decisions = decide(topic(*loads, layout=layout, policy=capped, capabilities=ANYTHING)).decisions
        return [(sealed_by(act), parts_of(act)) for act in decisions]

    assert at_most(4) == [((1,), 2)]
    assert at_most(3) == [((1, 2), 2)]


def test_the_floor_is_kept() -> None:
    floor = replace(POLICY, min_segments=3, reseal_price_segment_seconds=2_000)
    [act] = decide(ring(0.1, 0.1, 0.1, 0.1, ticks=45, policy=floor)).decisions
    several = decide(ring(*[0.1] * 8, ticks=45, policy=replace(floor, min_segments=7)))
    at_floor = decide(ring(*[0.1] * 8, ticks=45, policy=replace(floor, min_segments=8)))

    assert children(act) - len(sealed_by(act)) == -1
    assert [children(act) - len(sealed_by(act)) for act in several.decisions] == [-1]
    assert RefusalReason.AT_MIN_SEGMENTS in reasons(several).values()
    assert at_floor.decisions == ()
    assert reasons(at_floor) == {None: RefusalReason.AT_MIN_SEGMENTS}


def test_at_the_floor_it_is_said_how_many_segments_there_are() -> None:
    """And never that there are more than are needed, of acts that others have taken the place of."""
    alone = decide(ring(0.1, 0.1, ticks=45, policy=replace(POLICY, min_segments=2)))
    [refusal] = alone.refusals
    assert (refusal.metric, refusal.value, refusal.needed) == ("segments", 2, 2)

    for least in range(1, 8):
        floor = replace(POLICY, min_segments=least, reseal_price_segment_seconds=2_000)
        for told in decide(ring(*[0.1] * 8, ticks=45, policy=floor)).refusals:
            if told.reason is RefusalReason.AT_MIN_SEGMENTS:
                assert told.value is not None
                assert told.needed is not None
                assert least <= told.value <= told.needed, (least, told)


def test_no_consumer_that_needs_a_segment_of_its_own_loses_it() -> None:
    alone = replace(ANYTHING, shared_buckets=False)
    kept = decide(ring(0.1, 0.1, 0.1, 0.1, ticks=45, consumers=4, capabilities=alone))

    assert kept.decisions == ()
    assert reasons(kept) == {None: RefusalReason.WOULD_IDLE_CONSUMER}
    justified = decide(ring(0.1, 0.1, 0.1, 0.1, ticks=45, consumers=4))
    assert reasons(justified) == {None: RefusalReason.WOULD_IDLE_CONSUMER}
    assert decide(ring(0.05, 0.05, 0.05, 0.05, ticks=45, consumers=4)).decisions


def test_a_silent_collector_does_not_take_segments_from_consumers() -> None:
    """The rate of the two segments that are still heard justifies two segments; that of all justifies four."""
    heard = ring(0.1, 0.1, 0.1, 0.1, ticks=45, consumers=4)
    old = {i: record(0.1 * CAPACITY, POLICY, observed_at=NOW - 300_001) for i in (2, 3)}
    silent = replace(heard, loads={**heard.loads, **old})

    for situation in (silent, replace(heard, loads={i: heard.loads[i] for i in (0, 1)})):
        evaluation = decide(situation, {Lane.MERGE})

        assert evaluation.decisions == ()
        assert reasons(evaluation)[None] is RefusalReason.WOULD_IDLE_CONSUMER


@pytest.mark.parametrize(
    ("limit", "capabilities", "children"),
    [(4, ANYTHING, 4), (3, ANYTHING, None), (4, replace(ANYTHING, max_children=3), None)],
    ids=["within the limits", "too many segments", "too many children"],
)
def test_segments_for_the_places_of_consumers_are_made_within_the_limits(
    limit: int, capabilities: Capabilities, children: int | None
) -> None:
    """The segment was given four entry buckets before a segment was allowed one."""
    policy = replace(
        POLICY, max_segments=limit, entry_bucket_max_per_segment=1, split_vs_rebucket_min_msg_rate_in=1e6
    )
    evaluation = decide(ring(1.5, buckets=4, consumers=4, policy=policy, capabilities=capabilities))

    assert [parts_of(act) for act in evaluation.decisions] == ([children] if children else [])
    assert [(told.reason, told.metric, told.value, told.needed) for told in evaluation.refusals] == (
        [] if children else [(RefusalReason.WOULD_IDLE_CONSUMER, "places", 3, 4)]
    )


def test_segments_for_the_places_of_consumers_are_cut_where_the_load_is() -> None:
    policy = replace(POLICY, entry_bucket_max_per_segment=1, split_vs_rebucket_min_msg_rate_in=1e6)
    known = sketched(ring(1.5, buckets=4, consumers=4, policy=policy), (4, 1, 1, 1, 1, 0, 0, 0))

    [act] = decide(known).decisions

    assert isinstance(act, Split)
    assert (len(act.at), act.at[0]) == (3, 0x2000)


def test_a_relief_is_not_chosen_if_the_places_of_consumers_would_leave_its_cuts_as_they_are() -> None:
    """Two children would carry the load of the four segments, but each consumer needs a segment."""
    policy = replace(POLICY, entry_bucket_max_per_segment=1, split_vs_rebucket_min_msg_rate_in=1e9)
    loads = [0.5] * 16
    loads[3:7] = 1.2, 0.15, 0.15, 0.15
    known = ring(*loads, consumers=16, policy=policy)
    situation = replace(known, sketches=dict.fromkeys(range(3, 7), (1.0,) * 1024))

    [act] = decide(situation).decisions

    plan_action(act, situation.layout, max_buckets=1)
    assert (sealed_by(act), parts_of(act)) == ((3, 4), 2)


def test_a_range_is_not_cut_into_more_segments_for_consumers_than_it_has_hashes() -> None:
    """Its segment was given 64 entry buckets before a segment was allowed four."""
    policy = replace(
        POLICY, max_segments=200, entry_bucket_max_per_segment=4, split_vs_rebucket_min_msg_rate_in=1e9
    )
    splits = SegmentLayout.initial(1, bucket_budget=64, max_buckets=64, now=0).active[0].bucket_splits
    layout = SegmentLayout.from_segments(
        0,
        2,
        (
            Segment(0, HashRange(0, 3), bucket_splits=splits),
            Segment(1, HashRange(4, 65535), bucket_splits=splits),
        ),
    )
    narrow = topic(
        1.5 * CAPACITY,
        100.0,
        layout=layout,
        consumers=128,
        policy=policy,
        capabilities=replace(ANYTHING, max_children=16),
    )

    evaluation = decide(narrow)

    assert evaluation.decisions == ()
    assert reasons(evaluation)[0] is RefusalReason.WOULD_IDLE_CONSUMER


def test_consumers_are_served_first_and_their_segments_left_to_that() -> None:
    alone = replace(ANYTHING, shared_buckets=False)
    acts = decide(ring(1.5, 1.4, consumers=3, capabilities=alone)).decisions

    assert [(act.reason, sealed_by(act)) for act in acts] == [("consumer-count", (0,)), ("msgRateIn", (1,))]


def test_what_consumers_are_given_counts_under_the_cap() -> None:
    alone = replace(ANYTHING, shared_buckets=False)
    tight = replace(POLICY, max_segments=3)
    evaluation = decide(ring(1.5, 1.4, consumers=3, capabilities=alone, policy=tight))

    assert [(act.reason, sealed_by(act)) for act in evaluation.decisions] == [("consumer-count", (0,))]
    [refusal] = [one for one in evaluation.refusals if one.segment_id == 1]
    assert (refusal.reason, refusal.value, refusal.needed) == (RefusalReason.AT_MAX_SEGMENTS, 3, 3)


def test_one_hash_is_not_divided() -> None:
    layout = SegmentLayout.from_segments(3, 9, (Segment(6, HashRange(0, 0)), Segment(7, HashRange(1, 65535))))
    [refusal] = decide(topic(9 * CAPACITY, 0.8 * CAPACITY, layout=layout, policy=POLICY)).refusals

    assert (refusal.segment_id, refusal.reason, refusal.value) == (6, RefusalReason.UNSPLITTABLE, 9.0)
    assert refusal.not_before is None


def test_after_cuts_in_vain_a_segment_is_left_alone_for_an_hour_unless_its_load_is_known() -> None:
    def struck(times: int, age_ms: int = 0) -> EvaluationInput:
        layout = SegmentLayout.from_segments(
            3, 9, (Segment(8, HashRange(0, 65535), parent_ids=(2,), created_at_ms=NOW - age_ms),)
        )
        return replace(topic(3 * CAPACITY, layout=layout, policy=POLICY), strikes={8: times})

    assert decide(struck(MOST_STRIKES - 1)).decisions
    [refusal] = decide(struck(MOST_STRIKES)).refusals
    assert (refusal.reason, refusal.not_before) == (RefusalReason.UNSPLITTABLE, NOW + STOP_MS)
    assert decide(struck(MOST_STRIKES, STOP_MS)).decisions
    assert decide(replace(struck(MOST_STRIKES), sketches={8: (4.0, 1.0, 1.0, 2.0)})).decisions


@pytest.mark.parametrize(("clients", "producers"), [(40, 0), (0, 40), (25, 15)])
def test_the_budget_goes_to_what_does_most_for_each_client_and_the_rest_waits(
    clients: int, producers: int
) -> None:
    policy = replace(POLICY, reconnections_per_minute=60.0)
    connected = {"clients": clients, "producers": producers}
    hot = replace(ring(1.5, 0.8, 3.0, 0.8, policy=policy), **connected, reconnections_left=50.0)
    evaluation = decide(EvaluationInput.from_json(hot.to_json()))

    assert [sealed_by(act) for act in evaluation.decisions] == [(2,)]
    [refusal] = [r for r in evaluation.refusals if r.segment_id == 0]
    assert refusal.reason is RefusalReason.RECONNECTION_BUDGET
    assert (refusal.value, refusal.needed, refusal.not_before) == (40, 10, NOW + 30_000)


def test_an_act_beyond_the_whole_budget_is_made_when_that_is_full() -> None:
    policy = replace(POLICY, reconnections_per_minute=60.0)
    crowded = replace(ring(3.0, 0.8, policy=policy), clients=500)

    assert decide(replace(crowded, reconnections_left=60.0)).decisions
    assert decide(replace(crowded, reconnections_left=59.0)).decisions == ()
    assert decide(crowded).decisions  # nobody counts


def test_an_act_beyond_the_whole_budget_of_the_cluster_is_made_when_that_is_full() -> None:
    """The budget that is left is the smaller of the topic's and the cluster's, so it never holds more than 100."""
    policy = replace(POLICY, cluster_reconnections_per_minute=100.0)
    crowded = replace(ring(3.0, policy=policy), clients=200)

    assert decide(replace(crowded, reconnections_left=100.0)).decisions
    [refusal] = decide(replace(crowded, reconnections_left=50.0)).refusals
    assert refusal.reason is RefusalReason.RECONNECTION_BUDGET
    assert (refusal.value, refusal.needed, refusal.not_before) == (200, 50, NOW + 30_000)


@pytest.mark.parametrize(
    ("of_topic", "of_cluster", "wait_seconds"),
    [
        (3_000.0, -29_960.0, 60),  # the cluster regains 500 a second
        (-5_960.0, 30_000.0, 120),  # the topic 50
        (-1_460.0, -29_960.0, 60),
        (-5_960.0, -29_960.0, 120),
    ],
)
def test_the_wait_ends_when_both_budgets_suffice(
    of_topic: float, of_cluster: float, wait_seconds: int
) -> None:
    hot = replace(
        ring(3.0, policy=POLICY),
        clients=40,
        reconnections_left=of_topic,
        cluster_reconnections_left=of_cluster,
    )

    evaluation = decide(EvaluationInput.from_json(hot.to_json()))

    [refusal] = evaluation.refusals
    assert (evaluation.decisions, refusal.reason) == ((), RefusalReason.RECONNECTION_BUDGET)
    assert (refusal.value, refusal.needed, refusal.not_before) == (40, 0, NOW + 1_000 * wait_seconds)


def test_a_budget_without_limit_does_not_lengthen_the_wait() -> None:
    policy = replace(POLICY, reconnections_per_minute=math.inf)
    hot = replace(
        ring(3.0, policy=policy), clients=40, reconnections_left=math.inf, cluster_reconnections_left=25.0
    )

    [refusal] = decide(EvaluationInput.from_json(hot.to_json())).refusals

    assert (refusal.needed, refusal.not_before) == (25, NOW + 30)


def test_an_act_spends_both_budgets() -> None:
    hot = replace(ring(1.5, 0.8, 3.0, 0.8, policy=POLICY), clients=40, reconnections_left=3_000.0)

    assert len(decide(replace(hot, cluster_reconnections_left=80.0)).decisions) == 2
    evaluation = decide(replace(hot, cluster_reconnections_left=70.0))

    assert [sealed_by(act) for act in evaluation.decisions] == [(2,)]
    [refusal] = [r for r in evaluation.refusals if r.segment_id == 0]
    assert (refusal.value, refusal.needed, refusal.not_before) == (40, 30, NOW + 20)


def test_a_broker_that_only_halves_is_asked_for_halves() -> None:
    halves = Capabilities(midpoint_only=True)

    assert decide(ring(9.0, capabilities=halves)).decisions == (Split(0, (), "msgRateIn"),)
    assert decide(ring(0.1, 0.1, 0.1, 0.1, ticks=45, capabilities=halves)).decisions in (
        (Merge(0, 1, "cold"), Merge(2, 3, "cold")),
        (),
    )


def test_more_than_the_plane_can_make_at_once_is_made_in_turns() -> None:
    [act] = decide(ring(9.0, capabilities=replace(ANYTHING, max_children=4))).decisions

    assert isinstance(act, Split)
    assert len(act.at) + 1 == 4


def test_a_quiet_topic_of_one_segment_is_not_looked_at_again() -> None:
    assert decide(ring(0.3)) == Evaluation(valid_until=NOW + 300_001)  # when its reading becomes stale


def test_strict_answers_belong_to_the_other_profile() -> None:
    assert [str(v) for v in violations(replace(POLICY, strict_pulsar=True))] == [
        "strict_pulsar = True must be false unless profile = pip483; set that as well"
    ]
    assert code_version(POLICY) != code_version(AutoScalePolicy())


@st.composite
def adaptive_situations(draw: st.DrawFn) -> EvaluationInput:
    """Any life of a topic, with memories that reach back further or less far."""
    drawn = draw(situations(strict=False))
    policy = replace(
        drawn.policy,
        profile="adaptive",
        reseal_price_segment_seconds=draw(st.sampled_from([0.0, 100.0, 7_800.0])),
        reconnections_per_minute=draw(st.sampled_from([1.0, 50.0])),
    )
    stats = st.builds(LoadStats, st.floats(0, 30), st.floats(0, 30), st.just(0.0), st.floats(0, 5))
    memories = {
        i: tuple(draw(st.lists(stats, min_size=1, max_size=3))) * draw(st.sampled_from([1, 15]))
        for i in drawn.loads
        if draw(st.integers(0, 4)) > 0
    }
    return replace(
        drawn,
        policy=policy,
        recent_loads=memories,
        clients=draw(st.sampled_from([0, 3])),
        producers=draw(st.sampled_from([0, 2])),
        reconnections_left=draw(st.sampled_from([None, -4.0, 10.0])),
        cluster_reconnections_left=draw(st.sampled_from([None, -9.0, 12.0])),
        strikes={i: draw(st.integers(1, 3)) for i in list(drawn.loads)[:1]},
        sketches={i: tuple(draw(st.lists(st.floats(0, 9), min_size=1, max_size=1 if s.hash_range.width < 8 else 8)))
                  for i, s in drawn.layout.segments.items() if draw(st.booleans())},
        capabilities=draw(st.sampled_from([ANYTHING, Capabilities(), Capabilities(midpoint_only=True), drawn.capabilities])),
    )  # fmt: skip


LANES = st.sets(st.sampled_from(Lane))


@given(adaptive_situations(), LANES)
def test_the_same_situation_has_one_answer_also_after_a_trip_through_json(
    situation: EvaluationInput, lanes: set[Lane]
) -> None:
    text = situation.to_json()
    replayed = EvaluationInput.from_json(text)

    assert replayed.to_json() == text
    assert decide(replayed, lanes).to_json() == decide(situation, lanes).to_json()


@given(adaptive_situations())
def test_every_act_is_one_the_layout_accepts_and_all_of_them_together(situation: EvaluationInput) -> None:
    layout = situation.layout
    for act in decide(situation).decisions:
        layout = layout.apply(
            plan_action(act, layout, max_buckets=situation.policy.entry_bucket_max_per_segment), NOW
        )
        layout.check_invariants()


@given(adaptive_situations())
def test_no_cap_is_passed_and_nothing_is_touched_twice(situation: EvaluationInput) -> None:
    decisions = decide(situation).decisions
    touched = [i for act in decisions for i in sealed_by(act)]
    size = len(situation.layout.active)
    active = {segment.segment_id for segment in situation.layout.active}
    pending = [live for live in situation.in_flight if active & set(live.parent_ids)]
    most = size + sum(max(0, live.child_count - len(live.parent_ids)) for live in pending)
    least = size + sum(min(0, live.child_count - len(live.parent_ids)) for live in pending)
    growth = [children(act) - len(sealed_by(act)) for act in decisions]

    assert len(touched) == len(set(touched))
    assert not set(touched) & {i for live in pending for i in live.parent_ids}
    assert sum(max(0, g) for g in growth) == 0 or most + sum(max(0, g) for g in growth) <= max(
        situation.policy.max_segments, most
    )
    assert sum(min(0, g) for g in growth) == 0 or least + sum(min(0, g) for g in growth) >= min(
        situation.policy.min_segments, least
    )


@given(adaptive_situations())
def test_nothing_hot_is_left_alone_without_a_reason(situation: EvaluationInput) -> None:
    evaluation = decide(situation)
    touched = {i for act in evaluation.decisions for i in sealed_by(act)}
    limits = situation.policy.thresholds.split.rates
    for segment in situation.layout.active:
        i = segment.segment_id
        if i not in situation.loads:
            continue
        now = (situation.recent_loads.get(i) or (situation.loads[i].stats,))[-1]
        if max(rate / limit for rate, limit in zip(now.rates, limits, strict=True)) > 1:
            assert i in touched or named(i, situation, evaluation.refusals)


@given(adaptive_situations(), LANES, st.data())
def test_the_answer_stays_the_same_at_every_instant_before_valid_until(
    situation: EvaluationInput, lanes: set[Lane], data: st.DataObject
) -> None:
    evaluation = decide(situation, lanes)
    until = evaluation.valid_until
    assert until is None or until > situation.now
    last = situation.now + 10**10 if until is None else until - 1
    for instant in (data.draw(st.integers(situation.now, last)), last):
        later = decide(replace(situation, now=instant), lanes)
        assert later.decisions == evaluation.decisions
        assert [replace(r, not_before=None) for r in later.refusals] == [
            replace(r, not_before=None) for r in evaluation.refusals
        ]


def children(act: Decision) -> int:
    match act:
        case Split(_, at):
            return len(at) + 1 if at else 2
        case Recut(_, at):
            return len(at) + 1
        case Merge() | Rebucket():
            return 1


def named(segment_id: int, situation: EvaluationInput, refusals: Sequence[Refusal]) -> bool:
    """Whether a refusal is of the segment or of a run that it lies in."""
    order = [segment.segment_id for segment in situation.layout.active]
    place = order.index(segment_id)
    for refusal in refusals:
        if refusal.segment_id in order:
            first = order.index(refusal.segment_id)
            last = order.index(refusal.other_id) if refusal.other_id in order else first
            if min(first, last) <= place <= max(first, last):
                return True
    return False


def test_the_memory_is_as_long_as_the_rule_says() -> None:
    """More ticks than the rule looks at change nothing."""
    long = ring(0.4, 0.4, 0.89, 0.89, ticks=200)

    assert decide(long).decisions == decide(ring(0.4, 0.4, 0.89, 0.89, ticks=TICKS_OF_MEMORY)).decisions
    assert SMALL.load_memory_seconds == 60 * TICKS_OF_MEMORY


def sketched(situation: EvaluationInput, *sketches: tuple[float, ...]) -> EvaluationInput:
    return replace(situation, sketches=dict(enumerate(sketches)))


def test_where_it_is_known_where_the_load_lies_cuts_follow_it() -> None:
    [act] = decide(sketched(ring(1.6), (4, 1, 1, 2))).decisions

    assert act == Split(0, (0x4000,), "msgRateIn")


def test_neighbours_of_unlike_density_are_cut_together_where_both_are_known() -> None:
    cheap = replace(POLICY, reseal_price_segment_seconds=100.0)
    known = sketched(ring(1.7, 0.05, 0.88, 0.88, policy=cheap), (1, 1, 1, 1), (1, 1, 1, 1), (1,), (1,))

    [act] = decide(known).decisions

    assert isinstance(act, Recut)
    assert (act.segment_ids, len(act.at)) == ((0, 1), 1)
    assert act.at[0] < 0x4000


@pytest.mark.parametrize("known", [(3,), (4,), (3, 4)])
def test_equal_neighbours_are_not_cut_as_they_are(known: tuple[int, ...]) -> None:
    """Also if the load lies evenly, as far as it is known."""
    loads = [0.5] * 16
    loads[2:5] = 0.3, 1.2, 0.6
    situation = replace(ring(*loads), sketches=dict.fromkeys(known, (1.0,) * 1024))

    evaluation = decide(situation)

    assert 3 in {i for act in evaluation.decisions for i in sealed_by(act)}
    for act in evaluation.decisions:
        plan_action(act, situation.layout, max_buckets=64)


def test_what_is_hot_in_itself_is_told_apart_and_then_left_alone() -> None:
    [act] = decide(sketched(ring(3.0), (0.1, 0.1, 2.7, 0.1))).decisions
    whole = SegmentLayout.initial(1, now=0)
    isolated = whole.apply(plan_action(Split(0, (0x8000, 0x8040)), whole, max_buckets=64), 0)
    evaluation = decide(_of_slots(isolated, {0x8001: 2.69, 0x8002: 0.01}, {}, 100 * MINUTE))

    assert act == Split(0, (0x8000, 0xC000), "msgRateIn")
    assert [one for one in evaluation.decisions if 2 in sealed_by(one)] == []
    assert [
        (r.segment_id, r.value and round(r.value, 3))
        for r in evaluation.refusals
        if r.reason is RefusalReason.UNSPLITTABLE
    ] == [(2, 2.7)]


def test_hot_hashes_in_one_bin_are_told_apart_once_their_bin_is_cut_out() -> None:
    layout, memory = SegmentLayout.initial(1, now=0), dict[int, tuple[LoadStats, ...]]()
    for tick in (1, 2):
        for act in decide(_of_slots(layout, {0x8001: 0.9, 0x8002: 0.9}, memory, tick * MINUTE)).decisions:
            layout = layout.apply(plan_action(act, layout, max_buckets=64), tick * MINUTE)

    assert layout.segment_for(0x8001) is not layout.segment_for(0x8002)


def test_fewer_segments_are_not_made_where_keys_would_overload_one() -> None:
    """1.5 in all is one segment less by the sum, but not where the cuts could go."""
    ticks = 45
    cheap = replace(POLICY, reseal_price_segment_seconds=100.0)
    uneven = ring(0.5, 0.5, 0.5, ticks=ticks, policy=cheap)

    assert [sealed_by(act) for act in decide(sketched(uneven, (1, 1), (1, 1), (1, 1))).decisions] == [
        (0, 1, 2)
    ]
    stuck = decide(sketched(uneven, (1,), (1,), (1,)))
    assert stuck.decisions == ()
    assert [r.reason for r in stuck.refusals] == [RefusalReason.WOULD_SPLIT_AGAIN]


@pytest.mark.parametrize(("most_parts", "expected"), [(64, [((0, 1, 2), 2)]), (2, [])])
def test_fewer_segments_are_made_where_keys_show_that_no_child_is_hot(
    most_parts: int, expected: list[tuple[tuple[int, ...], int]]
) -> None:
    """By equal densities a child would have 1.25; by the keys, of which most are late in the second, both have 0.88. Cuts that the
    data plane limits in number are not trusted.
    """
    late = (*[0.1 / 90] * 90, *[0.07] * 10)
    capabilities = replace(ANYTHING, max_children=most_parts)
    busy_ring = ring(0.5, 0.8, 0.45, *[0.89] * 13, ticks=45, capabilities=capabilities)

    acts = decide(sketched(busy_ring, (1.0,) * 100, late, (1.0,) * 100)).decisions

    assert [(sealed_by(act), parts_of(act)) for act in acts] == expected


@pytest.mark.parametrize("seed", range(5))
def test_hot_keys_are_isolated_by_few_acts_and_then_nothing_is_done_in_vain(seed: int) -> None:
    """A thousand keys by Zipf's law with exponent 1.5, sixteen segments' worth of load in all."""
    random = Random(seed)
    shares = [1 / rank**1.5 for rank in range(1, 1_001)]
    slots: dict[int, float] = defaultdict(float)
    for share in shares:
        slots[random.randrange(65_536)] += share / sum(shares) * 16
    layout, acts, late = SegmentLayout.initial(1, now=0), 0, 0
    memory: dict[int, tuple[LoadStats, ...]] = {}
    for tick in range(1, 91):
        situation = _of_slots(layout, slots, memory, tick * MINUTE)
        for act in decide(situation).decisions:
            layout = layout.apply(plan_action(act, layout, max_buckets=64), tick * MINUTE)
            acts += 1
            late += tick > 60
    hot = [s for s in layout.active if sum(v for h, v in slots.items() if s.hash_range.contains(h)) > 1.15]

    assert len(layout.active) <= 15
    assert acts <= 6
    assert late == 0
    refused = reasons(decide(_of_slots(layout, slots, memory, 91 * MINUTE)))
    assert all(refused[s.segment_id] is RefusalReason.UNSPLITTABLE for s in hot)


def _of_slots(
    layout: SegmentLayout, slots: Mapping[int, float], memory: dict[int, tuple[LoadStats, ...]], now: int
) -> EvaluationInput:
    loads, sketches = {}, {}
    for segment in layout.active:
        inside = {h: load for h, load in slots.items() if segment.hash_range.contains(h)}
        stats = LoadStats(sum(inside.values()) * CAPACITY)
        loads[segment.segment_id] = LoadRecord(stats, now, None, now)
        memory[segment.segment_id] = (*memory.get(segment.segment_id, ()), stats)
        counts = [0.0] * bin_count(segment.hash_range)
        for h, load in inside.items():
            counts[(h - segment.hash_range.start) * len(counts) // segment.hash_range.width] += load
        sketches[segment.segment_id] = tuple(counts)
    return EvaluationInput(
        layout=layout,
        loads=loads,
        recent_loads=memory,
        sketches=sketches,
        policy=POLICY,
        capabilities=ANYTHING,
        now=now,
    )
