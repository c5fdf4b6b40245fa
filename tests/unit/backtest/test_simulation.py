"""The simulation: a rule is asked with what it could know, and what it wants comes to be."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.backtest.load_series import of_messages
from controller.backtest.rule import Rule
from controller.backtest.score import score
from controller.backtest.simulation import Conditions, Simulation, simulate
from controller.domain.decision import Decision, Evaluation, Recut, Split
from controller.domain.errors import InvalidInput, InvariantViolated
from controller.domain.evaluation_input import EvaluationInput
from controller.domain.hash_range import MAX_HASH
from controller.domain.policy import AutoScalePolicy
from controller.domain.reshape import ReshapeKind
from tests.unit.backtest import worlds

CAPACITY = AutoScalePolicy().split_msg_rate_in


def step_up(to: float, *, steps: int = 600, at: int = 60) -> np.ndarray:
    """Half a capacity, then `to` capacities, in messages/s."""
    return np.where(np.arange(steps) < at, 0.5, to) * CAPACITY


def split_first(situation: EvaluationInput) -> Decision:
    """Split the first segment."""
    return Split(situation.layout.active[0].segment_id)


def recorded(
    act: Callable[[EvaluationInput], Decision] = split_first, *, at: Collection[int] = (), **options: Any
) -> tuple[Rule, list[EvaluationInput]]:
    """Return a rule that acts in the evaluations with these numbers, counted from 1, and the situations that it is shown."""
    seen: list[EvaluationInput] = []

    def decide(situation: EvaluationInput) -> Evaluation:
        seen.append(situation)
        return Evaluation((act(situation),) if len(seen) in at else ())

    return Rule("recorded", decide, **options), seen


@given(st.data(), worlds.series(), worlds.policies())
def test_asking_only_where_the_answer_can_differ_gives_the_same_acts(
    data: st.DataObject, series: worlds.LoadSeries, policy: AutoScalePolicy
) -> None:
    conditions = data.draw(worlds.conditions(series.steps))
    rule = worlds.pip483(policy)

    plain = simulate(series, rule, conditions, ask_always=True)
    skipping = simulate(series, rule, conditions)

    assert skipping.acts == plain.acts
    assert skipping.stretches == plain.stretches
    assert score(skipping) == score(plain)
    assert skipping.looks <= plain.looks == series.steps * 60 // conditions.tick_seconds


@given(st.data(), worlds.series(), worlds.policies())
def test_the_active_segments_tile_the_ring_at_all_times(
    data: st.DataObject, series: worlds.LoadSeries, policy: AutoScalePolicy
) -> None:
    run = simulate(series, worlds.pip483(policy), data.draw(worlds.conditions(series.steps)))

    for stretch in run.stretches:
        assert (stretch.ranges[0].start, stretch.ranges[-1].end) == (0, MAX_HASH)
        assert all(low.end + 1 == high.start for low, high in pairwise(stretch.ranges))
    assert all(one.begins > 0 for one in run.stretches[1:])
    assert run.segments.max() <= max(policy.max_segments, run.conditions.initial_segments)


def test_a_quiet_topic_is_hardly_ever_asked_about() -> None:
    run = simulate(of_messages("quiet", np.full(10_080, 0.4 * CAPACITY)), worlds.pip483())

    assert (run.looks, run.acts) == (1, ())


def test_what_happens_in_a_step_is_answered_in_the_next() -> None:
    run = simulate(of_messages("up", step_up(1.9)), worlds.pip483())

    assert [(act.asked, act.begins, act.kind) for act in run.acts] == [(60, 61, ReshapeKind.SPLIT)]
    assert run.segments.tolist() == [1] * 61 + [2] * 539
    assert run.overloaded.tolist() == [0] * 60 + [1] + [0] * 539
    assert run.excess[60] == pytest.approx(0.9)


def test_until_a_reshape_is_in_force_its_parent_takes_the_load() -> None:
    run = simulate(of_messages("up", step_up(1.9)), worlds.pip483(), Conditions(actuation_seconds=61))

    assert [(act.asked, act.begins) for act in run.acts] == [(60, 63)]
    assert np.flatnonzero(run.overloaded).tolist() == [60, 61, 62]


def test_a_rule_may_not_act_on_what_is_in_flight() -> None:
    rule, _ = recorded(at=range(1, 601))
    with pytest.raises(InvariantViolated, match="are in a running reshape"):
        simulate(of_messages("up", step_up(1.9)), rule, Conditions(actuation_seconds=120))


def test_a_rule_sees_the_last_ticks_and_nothing_of_the_future() -> None:
    rule, seen = recorded(memory_ticks=45)
    simulate(of_messages("count", range(60), start_ms=worlds.START), rule)

    assert [one.msg_rate_in for one in seen[5].recent_loads[0]] == [0, 1, 2, 3, 4, 5]
    assert [one.msg_rate_in for one in seen[59].recent_loads[0]] == list(range(15, 60))


@pytest.mark.parametrize("retention", [0, 3_600])
def test_children_of_a_split_inherit_their_parents_last_ticks_by_the_shares_they_turn_out_to_have(
    retention: int,
) -> None:
    rule, seen = recorded(lambda _: Split(0, (0x4000,)), at={3})
    uneven = np.array([[0.4, 0.2, 0.2, 0.2]])
    series = of_messages("count", [100.0, 200.0, 300.0, 400.0], start_ms=worlds.START, shares=uneven)
    simulate(series, rule, Conditions(retention_seconds=retention))

    low, high = (seen[3].recent_loads[s.segment_id] for s in seen[3].layout.active)
    assert [one.msg_rate_in for one in low] == pytest.approx([40, 80, 120, 160])
    assert [one.msg_rate_in for one in high] == pytest.approx([60, 120, 180, 240])


def test_what_joins_segments_inherits_by_width() -> None:
    rule, seen = recorded(lambda _: Recut((0, 1), (0x4000,)), at={2})
    series = of_messages("count", [100.0, 200.0, 300.0], start_ms=worlds.START)
    simulate(series, rule, Conditions(initial_segments=2))

    low, high = (seen[2].recent_loads[s.segment_id] for s in seen[2].layout.active)
    assert [one.msg_rate_in for one in low] == pytest.approx([25, 50, 75])
    assert [one.msg_rate_in for one in high] == pytest.approx([75, 150, 225])


def test_a_split_that_leaves_nearly_all_of_the_load_in_one_part_is_a_strike() -> None:
    rule, seen = recorded(at={2, 3})
    one_key = np.array([[1.0] + [0.0] * 63])
    series = of_messages("one key", [100.0] * 4, start_ms=worlds.START, shares=one_key)
    simulate(series, rule)

    assert [dict(situation.strikes) for situation in seen] == [{}, {}, {1: 1}, {3: 2}]


def test_a_rule_is_shown_where_the_load_lies_if_anybody_counts_it() -> None:
    rule, seen = recorded(at={1})
    left = np.array([[0.6, 0.4, 0.0, 0.0]])
    series = of_messages("left", [100.0] * 2, start_ms=worlds.START, shares=left)
    simulate(series, rule, Conditions(sketches=True))

    whole, low = (np.array(next(iter(situation.sketches.values()))) for situation in seen)
    assert (len(whole), len(low)) == (1024, 1024)
    assert whole.reshape(4, 256).sum(axis=1) == pytest.approx([0.6, 0.4, 0, 0])
    assert low.reshape(2, 512).sum(axis=1) == pytest.approx([0.6, 0.4])

    simulate(series, rule)
    assert seen[-1].sketches == {}


def test_acts_spend_a_budget_that_fills_up_again() -> None:
    rule, seen = recorded(at={1, 2}, policy=AutoScalePolicy(reconnections_per_minute=10))
    conditions = Conditions(clients=16, consumers=np.full(4, 3))
    series = of_messages("any", [1.0] * 4, start_ms=worlds.START)
    run = simulate(series, rule, conditions)

    assert [situation.clients for situation in seen] == [19, 18, 17, 17]
    assert [situation.reconnections_left for situation in seen] == [10, 1, -7, 3]
    assert [act.reconnections for act in run.acts] == [19, 18]


def test_without_clients_there_is_no_limit_to_reconnections() -> None:
    rule, seen = recorded()
    simulate(of_messages("any", [1.0]), rule)

    assert (seen[0].clients, seen[0].reconnections_left) == (0, None)


def test_the_window_of_a_fine_series_is_the_mean_of_its_steps() -> None:
    rule, seen = recorded()
    simulate(of_messages("fine", [100.0] * 6 + [700.0] + [100.0] * 5, step_seconds=10), rule)

    assert [situation.loads[0].stats.msg_rate_in for situation in seen] == pytest.approx([100.0, 200.0])


def test_a_tick_that_is_no_multiple_of_the_step_is_refused() -> None:
    with pytest.raises(InvalidInput, match="tick_seconds = 90"):
        simulate(of_messages("any", [1.0]), worlds.pip483(), Conditions(tick_seconds=90))


def relief(run: Simulation) -> tuple[float, float]:
    """Minutes until nothing is overloaded, and overloaded segment-minutes."""
    hot = np.flatnonzero(run.overloaded)
    minutes = run.series.step_seconds / 60
    return float(len(hot) * minutes), float(run.overloaded.sum() * minutes)


@pytest.mark.parametrize(("times", "minutes", "segment_minutes"), [(8, 6.2, 15), (64, 62.2, 1023)])
def test_pip483_needs_a_minute_for_every_segment_of_a_burst(
    times: int, minutes: float, segment_minutes: float
) -> None:
    """As measured elsewhere, in a series of 10-s steps with the burst 10 s before a tick."""
    series = of_messages("step", step_up(times * 0.8, at=65), step_seconds=10)

    took, overloaded = relief(simulate(series, worlds.pip483()))

    assert (round(took, 1), round(overloaded)) == (minutes, segment_minutes)


def test_a_policy_of_another_capacity_is_scored_by_it() -> None:
    policy = replace(AutoScalePolicy(), split_msg_rate_in=20_000.0)

    run = simulate(of_messages("up", step_up(1.9)), worlds.pip483(policy))

    assert (run.acts, run.max_load.max()) == ((), pytest.approx(0.95))


@pytest.mark.parametrize(("retention", "known"), [(0, 3), (60, 4), (61, 5)])
def test_sealed_segments_are_forgotten_after_a_while(retention: int, known: int) -> None:
    rule, seen = recorded(at={1, 2})
    simulate(of_messages("any", [1.0] * 3), rule, Conditions(retention_seconds=retention))

    assert len(seen[2].layout.segments) == known
    assert len(seen[2].layout.active) == 3


def test_acts_of_one_tick_under_way_together_have_segments_of_their_own() -> None:
    def split_all(situation: EvaluationInput) -> Evaluation:
        free = [] if situation.in_flight else situation.layout.active
        return Evaluation(tuple(Split(segment.segment_id) for segment in free))

    run = simulate(of_messages("any", [1.0] * 9), Rule("all", split_all), Conditions(actuation_seconds=120))

    assert run.segments.tolist() == [1, 1, 1, 2, 2, 4, 4, 8, 8]
    assert [sorted(one.ids) for one in run.stretches] == [[0], [1, 2], [3, 4, 5, 6], list(range(7, 15))]


def test_what_is_left_alone_is_observed_at_the_tick_at_which_something_else_is_replaced() -> None:
    rule, seen = recorded(at={1})
    series = of_messages("count", [1_000.0, 2_000.0, 3_000.0], start_ms=worlds.START)
    simulate(series, rule, Conditions(initial_segments=2, actuation_seconds=60))

    assert len(seen[1].layout.active) == 3
    assert seen[1].loads[1].stats.msg_rate_in == 1_000.0
    assert [one.msg_rate_in for one in seen[1].recent_loads[1]] == [500.0, 1_000.0]
