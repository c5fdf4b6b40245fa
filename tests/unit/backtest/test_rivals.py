"""Other systems' rules: the step response and the costs that were measured with another simulator, within 5 %."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.backtest.averages import SteadyAverages
from controller.backtest.load_series import LoadSeries, of_messages
from controller.backtest.rivals import count_rule, kinesis_on_demand, pravega, static_peak, ydb
from controller.backtest.rivals.registry import merging_at
from controller.backtest.rule import Rule
from controller.backtest.score import score
from controller.backtest.simulation import Conditions, Simulation, simulate
from controller.domain.decision import Lane, Refusal, RefusalReason, Split
from controller.domain.hash_range import HashRange
from controller.domain.layout import SegmentLayout
from controller.domain.load_record import LoadStats
from controller.domain.policy import AutoScalePolicy
from controller.domain.reshape import ReshapeKind
from controller.domain.segment import Segment
from tests.unit.backtest import worlds
from tests.unit.domain.situations import topic

CAPACITY = AutoScalePolicy().split_msg_rate_in
ROOMY = AutoScalePolicy(max_segments=128)
FINE = Conditions(tick_seconds=10, window_seconds=10)
RULES = [
    pravega.rule(),
    pravega.rule(64),
    ydb.rule(),
    kinesis_on_demand.rule(),
    count_rule.rule(),
]


def steady(series: LoadSeries) -> LoadSeries:
    """With one spread for all steps."""
    return series if series.shares is None else replace(series, shares=series.shares[:1])


def step(times: float, *, ticks_before: int = 65) -> LoadSeries:
    """From half a capacity to so many times 0.8, 10 s before a tick, in steps of 10 s."""
    load = np.where(np.arange(900) < ticks_before, 0.5, times * 0.8)
    return of_messages("step", load * CAPACITY, step_seconds=10)


def relief(run: Simulation) -> tuple[float, float]:
    """Minutes until nothing is overloaded, and overloaded segment-minutes."""
    minutes = run.series.step_seconds / 60
    return float((run.overloaded > 0).sum() * minutes), float(run.overloaded.sum() * minutes)


@pytest.mark.parametrize(
    ("rule", "conditions", "times", "minutes", "segment_minutes"),
    [
        (pravega.rule(), FINE, 8, 21, 62),
        (pravega.rule(), FINE, 64, 51, 630),
        (pravega.rule(64, ROOMY), FINE, 64, 20.5, 529),
        (ydb.rule(), Conditions(), 8, 15.5, 36),
        (ydb.rule(), Conditions(), 64, 31, 326),
        (kinesis_on_demand.rule(), Conditions(), 8, 17, 41),
        (kinesis_on_demand.rule(), Conditions(), 64, 35, 377),
        (kinesis_on_demand.rule(900), Conditions(), 8, 47, 111),
        (
            kinesis_on_demand.rule(900),
            Conditions(),
            64,
            95,
            1007,
        ),
    ],
)
def test_the_response_to_a_burst(
    rule: Rule, conditions: Conditions, times: int, minutes: float, segment_minutes: float
) -> None:
    took, overloaded = relief(simulate(step(times), rule, conditions))

    assert took == pytest.approx(minutes, rel=0.05)
    assert overloaded == pytest.approx(segment_minutes, rel=0.05)


@given(
    st.sampled_from(RULES),
    worlds.series(gaps=False),
    st.sampled_from([2, 8, 64]),
    st.sampled_from([0, 150]),
)
def test_none_acts_on_what_is_in_flight_nor_passes_the_cap(
    rule: Rule, series: LoadSeries, most: int, delay: int
) -> None:
    capped = replace(rule, policy=AutoScalePolicy(max_segments=most))

    run = simulate(series, capped, Conditions(actuation_seconds=delay))

    assert run.segments.max() <= most


@given(st.data(), st.sampled_from(RULES[:2]), worlds.series(), st.sampled_from([4, 64]))
def test_pravega_asked_only_where_its_averages_turn_does_the_same(
    data: st.DataObject, rule: Rule, series: LoadSeries, most: int
) -> None:
    series, conditions = steady(series), data.draw(worlds.conditions(series.steps))
    capped = replace(rule, policy=AutoScalePolicy(max_segments=most))

    plain = simulate(series, capped, conditions, ask_always=True)
    skipping = simulate(series, capped, conditions)

    assert skipping.acts == plain.acts
    assert score(skipping) == score(plain)


@given(worlds.series(), st.integers(0, 100))
def test_averages_are_what_following_them_report_by_report_gives(series: LoadSeries, begin: int) -> None:
    measured = series.rates
    averages = SteadyAverages([2.0, 20.0], 60_000, measured, np.ones(4), [0, 1])
    averages.move([], [], 1, begin)

    followed: list[list[float]] = [[0.0, 0.0], [0.0, 0.0]]
    for report in range(begin, series.steps):
        for place, minutes in enumerate((2.0, 20.0)):
            for metric in (0, 1):
                now, was = measured[report, metric], followed[place][metric]
                if not np.isnan(now):
                    weight = 1 - np.exp(-1 / minutes)
                    followed[place][metric] = now if was == 0 else was + weight * (now - was)
        found = averages.at(np.array([report]), np.ones(1))[:, :, 0, 0]
        assert found.tolist() == [pytest.approx(row, rel=1e-9, abs=1e-6) for row in followed]


def test_averages_begin_at_a_report_with_all_rates() -> None:
    """The first report lacks a rate, so it counts as not observed."""
    measured = np.array([[100.0, np.nan, 0.0, 0.0], [10.0, 5.0, 0.0, 0.0]])
    averages = SteadyAverages([2.0], 60_000, measured, np.ones(4), [0, 1])

    averages.move([], [], 1, 0)

    assert averages.at(np.array([0, 1]), np.ones(1))[0, :, :, 0].tolist() == [[0.0, 10.0], [0.0, 5.0]]


@given(worlds.series(), st.sampled_from(RULES[:2]))
def test_averages_followed_report_by_report_lead_to_the_same_acts(series: LoadSeries, rule: Rule) -> None:
    series = steady(series)
    shares = np.full((1, 4), 0.25) if series.shares is None else series.shares
    moving = replace(series, shares=np.repeat(shares, series.steps, axis=0))

    assert simulate(moving, rule).acts == simulate(replace(series, shares=shares), rule).acts


@given(st.sampled_from(RULES), worlds.series())
def test_a_gap_in_the_load_stops_none_of_them(rule: Rule, series: LoadSeries) -> None:
    assert simulate(series, rule).segments.min() >= 1


def test_pravega_merges_three_cold_neighbours_at_once_and_not_before_they_are_old() -> None:
    load = np.where(np.arange(300) < 30, 5.5, 0.3) * CAPACITY

    run = simulate(of_messages("down", load), pravega.rule())

    merges = [act for act in run.acts if len(act.children) == 1]
    youngest = {}
    for act in run.acts:
        assert all(act.begins - youngest.get(parent, 0) >= 10 for parent in act.parents)
        youngest.update(dict.fromkeys(act.children, act.begins))
    assert {len(act.parents) for act in merges} == {2, 3}
    assert all(act.asked >= 30 + 20 for act in merges)
    assert run.segments[-1] == 1


def test_the_count_rule_cuts_the_whole_ring_anew_at_the_largest_need_of_five_minutes() -> None:
    load = [1.3] * 10 + [2.6] + [1.3] * 10

    run = simulate(of_messages("bump", np.array(load) * CAPACITY), count_rule.rule())

    assert [(act.begins, act.kind, len(act.children)) for act in run.acts] == [
        (1, ReshapeKind.RECUT, 2),
        (11, ReshapeKind.RECUT, 4),
        (16, ReshapeKind.RECUT, 2),
    ]


def test_a_static_topic_has_its_peak_from_the_first_tick_on() -> None:
    series = of_messages("peak", np.array([0.2, 0.2, 6.3, 0.2]) * CAPACITY)

    run = simulate(series, static_peak.rule(series))

    assert run.segments.tolist() == [1, 7, 7, 7]


def test_pravega_merges_nothing_below_the_minimum_of_segments() -> None:
    """The minimum was raised when the topic had fewer segments."""
    cold = topic(10.0, 10.0, 10.0, policy=AutoScalePolicy(min_segments=5))
    averages = dict.fromkeys(range(3), (LoadStats(10.0),) * 4)

    assert pravega.decide(replace(cold, recent_loads=averages), 2).decisions == ()
    free = replace(cold, recent_loads=averages, policy=AutoScalePolicy(min_segments=1))
    assert len(pravega.decide(free, 2).decisions) == 1


@pytest.mark.parametrize("rule", [pravega.rule(), ydb.rule(), kinesis_on_demand.rule()])
@pytest.mark.parametrize("most", [2, 3])
def test_a_hot_segment_of_one_hash_is_refused_for_its_width_and_takes_no_room(rule: Rule, most: int) -> None:
    layout = SegmentLayout.from_segments(0, 2, (Segment(0, HashRange(0, 0)), Segment(1, HashRange(1, 65535))))
    load = LoadStats(10 * CAPACITY)
    situation = replace(
        topic(load, load, layout=layout, policy=AutoScalePolicy(max_segments=most)),
        recent_loads=dict.fromkeys((0, 1), (load,) * 6),
    )

    evaluation = rule.decide(situation)

    narrow = Refusal(0, Lane.LOAD, RefusalReason.WIDTH_ONE, "width", 1, 2)
    if most == 2:
        full = Refusal(1, Lane.LOAD, RefusalReason.AT_MAX_SEGMENTS, "segments", 2, 2)
        assert (evaluation.decisions, evaluation.refusals) == ((), (narrow, full))
    else:
        [split] = evaluation.decisions
        assert isinstance(split, Split)
        assert split.segment_id == 1
        assert evaluation.refusals == (narrow,)


def test_ydb_and_kinesis_never_merge() -> None:
    load = np.where(np.arange(600) < 60, 7.0, 0.01) * CAPACITY

    for rule in (ydb.rule(), kinesis_on_demand.rule()):
        run = simulate(of_messages("down", load), rule)
        assert run.segments[-1] == run.segments.max() > 1


def test_a_warm_merge_is_a_rule_of_its_own_for_strict_policies_too() -> None:
    """Of a policy with `strict_pulsar`, only the rule named strict keeps it."""
    strict = AutoScalePolicy(profile="pip483", strict_pulsar=True)

    assert not merging_at(strict, 0.35).strict_pulsar
