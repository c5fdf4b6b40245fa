"""What no sane source sends: each pure function answers it, or refuses it by name."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.domain import entry_buckets, load_window, reshape
from controller.domain.counter_rates import CounterSample
from controller.domain.decision import Lane, Merge, RefusalReason, Split
from controller.domain.errors import (
    CleaveError,
    InvalidInput,
    InvalidLayoutChange,
    InvalidRange,
    InvariantViolated,
)
from controller.domain.evaluation_input import EvaluationInput, LiveReshape
from controller.domain.evaluator import decide
from controller.domain.hash_range import FULL_RANGE, MAX_HASH, RING_SIZE, HashRange
from controller.domain.layout import SegmentLayout
from controller.domain.load_record import LoadRecord, LoadStats
from controller.domain.load_record_rule import next_record
from controller.domain.policy import AutoScalePolicy, PolicyOverride, violations
from controller.domain.segment import Segment, parse_segment_descriptor
from tests.support.counters import rates_from_counters
from tests.support.drawn import cases
from tests.unit.domain.situations import NOW, SHARED, record, situations, topic

INF, NAN = math.inf, math.nan
LONG = 10**5000
"""More digits than Python writes."""

odd_rates = st.sampled_from([NAN, INF, -INF, -1.0, -0.0, 5e-324, 1e308, 1.7e308, 10**400, -(10**400)])
any_rates = odd_rates | st.floats() | st.floats(0, 30)
odd_stats = st.builds(LoadStats, any_rates, any_rates, any_rates, any_rates)
odd_ints = st.sampled_from([LONG, -LONG, 2**63, 70_000, 65_536, -1, 0]) | st.integers()


# Decisions.


@st.composite
def odd_situations(draw: st.DrawFn) -> EvaluationInput:
    """Any situation, some of whose readings are no rates."""
    situation = draw(situations())
    loads = {
        segment_id: replace(held, stats=draw(odd_stats | st.just(held.stats)))
        for segment_id, held in situation.loads.items()
    }
    thresholds = draw(
        st.sampled_from(
            [
                {},
                {"split_msg_rate_in": 1e-300, "merge_msg_rate_in": 0.0},
                {"split_byte_rate_in": INF},
                {"split_vs_rebucket_min_msg_rate_in": INF},
                {"split_msg_rate_out": 1e308, "merge_msg_rate_out": 9e307},
            ]
        )
    )
    return replace(situation, loads=loads, policy=replace(situation.policy, **thresholds))


@given(odd_situations(), st.sets(st.sampled_from(Lane)))
def test_whatever_is_read_there_is_one_verdict_also_as_text(
    situation: EvaluationInput, lanes: set[Lane]
) -> None:
    evaluation = decide(situation, lanes)

    assert evaluation.to_json() == decide(EvaluationInput.from_json(situation.to_json()), lanes).to_json()
    assert json.loads(evaluation.to_json())


@given(odd_situations())
def test_nothing_is_done_for_a_reading_that_is_no_rate(situation: EvaluationInput) -> None:
    """Neither hot nor cold: the split has a real reason, and both sides of a merge are known to be cold."""
    for act in decide(situation).decisions:
        if isinstance(act, Merge):
            for segment_id in (act.left_id, act.right_id):
                assert situation.policy.thresholds.is_cold(situation.loads[segment_id].stats)
                assert min(situation.loads[segment_id].stats.rates) >= 0
        if isinstance(act, Split) and act.reason != "consumer-count":
            metric = ("msgRateIn", "byteRateIn", "msgRateOut", "byteRateOut").index(act.reason)
            rate = situation.loads[act.segment_id].stats.rates[metric]
            assert situation.policy.thresholds.split.rates[metric] < rate < INF


@pytest.mark.parametrize("odd", [NAN, INF, -INF, -1.0, 10**400])
@pytest.mark.parametrize("metric", range(4))
def test_a_metric_that_is_no_rate_hides_no_other(odd: float, metric: int) -> None:
    rates = [0.0, 0.0, 0.0, 300_000_000.0] if metric < 3 else [20_000.0, 0.0, 0.0, 0.0]
    rates[metric] = odd
    hot, cold = LoadStats(*rates), LoadStats()

    assert decide(topic(hot, 5_000.0)).decisions == (
        Split(0, (), "byteRateOut" if metric < 3 else "msgRateIn"),
    )
    assert decide(topic(replace_rate(cold, metric, odd), cold)).decisions == ()
    assert decide(topic(cold, cold)).decisions == (Merge(0, 1, "cold"),)


def replace_rate(stats: LoadStats, metric: int, rate: float) -> LoadStats:
    rates = list(stats.rates)
    rates[metric] = rate
    return LoadStats(*rates)


def test_the_neighbour_that_is_no_rate_is_the_one_that_is_not_cold() -> None:
    [refusal] = [
        one
        for one in decide(topic(LoadStats(), LoadStats(byte_rate_in=NAN))).refusals
        if one.reason is RefusalReason.NOT_COLD
    ]

    assert (refusal.segment_id, refusal.metric, refusal.value) == (1, "byte_rate_in", None)


@given(odd_stats, odd_stats, st.integers(0, 9))
def test_a_consumer_gets_a_segment_whatever_the_rates_are(
    one: LoadStats, other: LoadStats, consumers: int
) -> None:
    for capabilities in (None, SHARED):
        verdict = decide(topic(one, other, consumers=consumers, capabilities=capabilities), {Lane.CONSUMER})
        assert verdict.to_json()
        if capabilities is None and consumers > 2:
            assert [type(act) for act in verdict.decisions] == [Split]


@pytest.mark.parametrize("strict", [False, True])
def test_across_a_gap_nothing_is_merged(strict: bool) -> None:
    """A merge of what lies on both sides would be refused by the layout, each time anew."""
    quarters = SegmentLayout.initial(4, now=0)
    gap = SegmentLayout.from_segments(0, 4, [s for i, s in quarters.segments.items() if i != 1])
    policy = AutoScalePolicy(strict_pulsar=strict)

    both_sides = decide(topic(0.0, 5_000.0, 5_000.0, layout=gap, policy=policy))
    beside = decide(topic(5_000.0, 0.0, 0.0, layout=gap, policy=policy))
    alone = SegmentLayout.from_segments(0, 4, [quarters.segments[0], quarters.segments[2]])
    apart = decide(topic(0.0, 0.0, layout=alone, policy=policy))

    assert both_sides.decisions == apart.decisions == ()
    assert beside.decisions == (Merge(2, 3, "cold"),)
    assert [one.reason for one in apart.refusals] == []


def test_an_empty_layout_has_a_verdict() -> None:
    empty = SegmentLayout.from_segments(0, 0, ())

    assert decide(topic(layout=empty, consumers=9, capabilities=SHARED)).decisions == ()


@given(st.integers(-5, 5), st.integers(0, 50))
def test_reshapes_in_flight_that_leave_no_segment_are_counted_all_the_same(
    children: int, consumers: int
) -> None:
    live = LiveReshape(1, reshape.ReshapeKind.RECUT, (0,), children, NOW)
    situation = topic(1.0, 1.0, consumers=consumers, capabilities=SHARED, in_flight=(live,))

    assert decide(situation).to_json()


ODD_JSON: list[Any] = [
    *(None, True, 0, -1, 0.5, 2**63, 10**30, 1e308, INF, -INF, NAN),
    *("", "x", "\ud800", "NaN", [], [1], {}, {"a": 1}),
]


@st.composite
def odd_snapshots(draw: st.DrawFn) -> str:
    """A situation's text with something else in one place of it."""
    document = json.loads(draw(situations()).to_json())
    at: Any = document
    while True:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        key = draw(st.sampled_from(keys))
        if not (isinstance(at[key], dict | list) and at[key]) or draw(st.booleans()):
            break
        at = at[key]
    at[key] = draw(st.sampled_from(ODD_JSON))
    return json.dumps(document)


@given(odd_snapshots())
@settings(max_examples=cases(200, 2000))
def test_a_snapshot_that_is_read_at_all_is_decided_on_and_written(text: str) -> None:
    try:
        situation = EvaluationInput.from_json(text)
    except (CleaveError, ValueError, LookupError, ArithmeticError, TypeError, AttributeError):
        return
    assert json.loads(decide(situation).to_json())
    assert json.loads(situation.to_json())


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        ("now", INF, "now = inf"),
        ("now", "soon", "now = 'soon'"),
        ("epoch", 0.5, "epoch = 0.5"),
        ("next_segment_id", True, "next_segment_id = True"),
        ("stream_consumers", {"orders": INF}, "stream_consumers = inf"),
        ("stream_consumers", {"orders": -1}, "stream_consumers = -1"),
        ("history", {"last_split_at": NAN}, "last_split_at = nan"),
        ("capabilities", {"shared_buckets": "no"}, "shared_buckets = 'no'"),
        ("capabilities", {"max_children": 1.5}, "max_children = 1.5"),
        ("foreign_controller", 1, "foreign_controller = 1"),
        ("consumers_changed_at", "soon", "consumers_changed_at = 'soon'"),
    ],
)
def test_a_value_of_a_wrong_kind_is_named(place: str, value: Any, says: str) -> None:
    document = json.loads(topic(1.0).to_json()) | {place: value}

    with pytest.raises(InvalidInput) as refused:
        EvaluationInput.from_json(json.dumps(document))
    assert says in str(refused.value)


# Policies.


@given(st.dictionaries(st.text(max_size=5) | st.integers(), st.none() | st.integers() | st.text(max_size=3)))
def test_a_document_is_read_or_refused(document: dict[Any, Any]) -> None:
    for read in (AutoScalePolicy.from_document, PolicyOverride.from_document):
        refused_or(InvalidInput, lambda read=read: read(document))


@pytest.mark.parametrize(
    "document",
    [None, [], [1], "max_segments", 7, True, {1: 2}, {"max_segments": LONG}],
    ids=lambda one: type(one).__name__,
)
def test_what_is_no_document_is_refused(document: Any) -> None:
    for read in (AutoScalePolicy.from_document, PolicyOverride.from_document):
        with pytest.raises(InvalidInput):
            read(document)


def test_thresholds_of_zero_are_refused_by_name() -> None:
    broken = {violation.parameter for violation in violations(AutoScalePolicy(split_msg_rate_in=0.0))}
    assert broken == {"split_msg_rate_in"}
    verdict = decide(topic(5.0, policy=AutoScalePolicy(split_msg_rate_in=0.0, merge_msg_rate_in=0.0)))
    assert {one.reason for one in verdict.refusals} == {RefusalReason.INVALID_POLICY}


# Ranges, layouts, buckets.


@given(odd_ints, odd_ints)
def test_a_range_is_on_the_ring_or_refused(start: int, end: int) -> None:
    made = refused_or(InvalidRange, lambda: HashRange(start, end))
    assert made is None or 0 <= made.start <= made.end <= MAX_HASH


@given(odd_ints)
def test_ranges_are_divided_or_it_is_refused(number: int) -> None:
    for act in (
        lambda: FULL_RANGE.cut(number),
        lambda: FULL_RANGE.cut_many([1, number]),
        lambda: FULL_RANGE.divide(number if number < 2000 else LONG),
        lambda: FULL_RANGE.equal_cuts(number if number < 2000 else LONG),
    ):
        refused_or(InvalidRange, act)


@given(odd_ints, odd_ints)
def test_a_layout_takes_what_fits_and_refuses_the_rest_by_name(number: int, other: int) -> None:
    layout = SegmentLayout.initial(2, now=0)
    few = number if number < 2000 else LONG
    for act in (
        lambda: SegmentLayout.initial(few, now=0),
        lambda: layout.split(number, 0),
        lambda: layout.split(0, 0, number),
        lambda: layout.split(0, 0, [number, other]),
        lambda: reshape.plan_equal_split(layout, 0, few),
        lambda: layout.merge(number, other, 0),
        lambda: layout.rebucket(0, number, 0),
        lambda: layout.rebucket(0, number, 0, max_buckets=other),
        lambda: layout.rebucket(number, 1, 0),
        lambda: reshape.plan_recut(layout, [0, 1], [number]),
        lambda: reshape.plan_recut(layout, [number], [other]),
        lambda: reshape.plan_heal(layout, number),
        lambda: layout.prune(number),
        lambda: layout.segment(number),
        lambda: layout.segment_for(number),
        lambda: layout.lineage(number),
        lambda: layout.reshape([0], [reshape.ChildPlan(number, HashRange(0, 32767), (other,))], 0),
    ):
        made = refused_or(CleaveError, act)
        if isinstance(made, SegmentLayout):
            made.check_invariants()


@pytest.mark.parametrize("child_id", [2**63, LONG], ids=["65 bits", "5,000 digits"])
def test_a_child_of_an_impossible_id_is_refused(child_id: int) -> None:
    layout = SegmentLayout.initial(2, now=0)

    with pytest.raises(InvalidLayoutChange, match="the highest possible id"):
        layout.reshape([0], [reshape.ChildPlan(child_id, HashRange(0, 32767))], 0)


def test_the_laws_are_checked_of_impossible_numbers_too() -> None:
    odd = Segment(LONG, FULL_RANGE, parent_ids=(LONG - 1,), created_epoch=-LONG, merge_depth=LONG)

    with pytest.raises(InvariantViolated, match="bits"):
        SegmentLayout.from_segments(LONG, LONG, [odd]).check_invariants()


@pytest.mark.parametrize("count", [65_537, 70_000, LONG], ids=["one more", "70,000", "5,000 digits"])
def test_more_buckets_than_there_are_hashes_are_refused_however_many_are_allowed(count: int) -> None:
    """They would silently have become 65,536."""
    layout = SegmentLayout.initial(1, now=0)

    with pytest.raises(InvalidLayoutChange, match=r"bucketCount must be in \[1, 65536\]"):
        layout.rebucket(0, count, 0, max_buckets=LONG)
    assert layout.rebucket(0, RING_SIZE, 0, max_buckets=LONG).segments[1].bucket_count == RING_SIZE


@given(odd_ints, st.integers(1, 100), odd_ints)
def test_a_budget_of_buckets_gives_a_number_that_can_be_laid_out(
    budget: int, segments: int, most: int
) -> None:
    count = entry_buckets.buckets_for_budget(budget, segments, most)

    assert 1 <= count <= RING_SIZE
    assert len(entry_buckets.equal_splits(count)) + 1 == count


@pytest.mark.parametrize("text", ["0000-7fff-" + "9" * 5000, "0000-7fff-" + "0" * 20, "x" * 10_000])
def test_a_descriptor_of_an_impossible_id_is_refused_in_a_short_line(text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_segment_descriptor(text)
    assert len(str(refused.value)) < 200


def test_a_segment_of_an_impossible_id_can_be_named() -> None:
    assert "bits" in str(Segment(LONG, FULL_RANGE))


# Load.


@given(odd_stats, odd_stats)
def test_only_rates_become_records(before: LoadStats, now: LoadStats) -> None:
    are_rates = all(0 <= rate <= sys.float_info.max for rate in now.rates)
    previous = LoadRecord(before, 0, None, 0)
    for strict_pulsar in (False, True):
        made = refused_or(
            InvalidInput,
            lambda strict=strict_pulsar: next_record(
                previous, now, 1, AutoScalePolicy().thresholds, strict_pulsar=strict
            ),
        )
        assert (made is not None) is are_rates


@pytest.mark.parametrize("odd", [NAN, INF, -1.0])
def test_a_record_that_is_no_rate_is_written_anew(odd: float) -> None:
    """Else it would stand for ever: nothing is a material change of it."""
    for strict_pulsar in (False, True):
        made = next_record(
            record(LoadStats(odd)),
            LoadStats(1.0),
            NOW + 1,
            AutoScalePolicy().thresholds,
            strict_pulsar=strict_pulsar,
        )
        assert made.record.stats == LoadStats(1.0)


@given(odd_ints, odd_ints)
def test_counters_are_counted_or_refused(instant_ms: int, count: int) -> None:
    sample = refused_or(InvalidInput, lambda: CounterSample("b", instant_ms, count, 0, 0, 0))
    if sample is not None:
        first = CounterSample("b", 0, 0, 0, 0, 0)
        found = rates_from_counters([first, sample], sample.instant_ms)
        assert found is None or all(0 <= rate < INF for rate in found.stats.rates)


@pytest.mark.parametrize("seconds", [NAN, INF, -INF, -1.0, 0.0, 1e-9, 1e300])
def test_a_window_has_a_length_or_is_refused(seconds: float) -> None:
    with pytest.raises(InvalidInput, match="a window"):
        load_window.LoadWindow.ending_at(NOW, seconds)


def refused_or(kind: type[CleaveError], act: Any) -> Any:
    """What it gives, None where it was refused by that name, in a line that can be read."""
    try:
        return act()
    except kind as error:
        line = str(error)
    assert 0 < len(line) < 1_000
    return None
