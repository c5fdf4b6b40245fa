"""What a run cost, on runs small enough to count by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given

from controller.backtest.load_series import of_messages
from controller.backtest.rule import Rule
from controller.backtest.score import Prices, score
from controller.backtest.simulation import Conditions, simulate
from controller.domain.decision import Decision, Evaluation, Lane, Merge, Refusal, RefusalReason, Split
from controller.domain.errors import InvalidInput
from controller.domain.evaluation_input import EvaluationInput
from controller.domain.policy import AutoScalePolicy
from tests.unit.backtest import worlds

CAPACITY = 10_000.0


def acting(
    acts: dict[int, Sequence[Decision]], refusals: Callable[[int], Sequence[Refusal]] = lambda _: ()
) -> Rule:
    """Does what is listed for a tick and says what it is told to."""

    def decide(situation: EvaluationInput) -> Evaluation:
        tick = (situation.now - worlds.START) // 60_000 - 1
        return Evaluation(tuple(acts.get(tick, ())), tuple(refusals(tick)))

    return Rule("acting", decide)


def series(*load: float, shares: Sequence[float] | None = None) -> worlds.LoadSeries:
    """One load a minute, in capacities."""
    spread = None if shares is None else np.array([shares])
    return of_messages("by hand", np.array(load) * CAPACITY, start_ms=worlds.START, shares=spread)


def test_a_cost_is_hours_and_overload_and_changes_each_at_its_price() -> None:
    run = simulate(series(2.5, 2.5, 2.5, 0.5), acting({0: [Split(0)], 2: [Merge(1, 2)]}))

    found = score(run, Prices(excess=20, change_seconds=60, reseal_seconds=600))

    assert found.segment_hours == pytest.approx((1 + 2 + 2 + 1) / 60)
    assert found.excess_hours == pytest.approx((1.5 + 0.5 + 0.5) / 60)
    assert (found.overload_seconds, found.overloaded_segment_seconds) == (180, 60 + 120 + 120)
    assert found.over_provisioned_hours == 0
    assert (found.reshapes, found.rings_resealed, found.most_segments) == (2, 2.0, 2)
    assert found.cost == pytest.approx((6 + 20 * 2.5 + 2 + 2 * 10) / 60)


def test_segments_beyond_the_fewest_that_would_do_are_over_provisioned() -> None:
    run = simulate(series(0.5, 0.5, 1.5), acting({}), Conditions(initial_segments=4))

    assert score(run).over_provisioned_hours == pytest.approx((3 + 3 + 2) / 60)


def test_a_price_below_nothing_is_refused() -> None:
    with pytest.raises(InvalidInput, match="price reseal_seconds = -1"):
        Prices(reseal_seconds=-1)


@pytest.mark.parametrize(
    ("acts", "reversals"),
    [
        ({5: [Split(0)], 6: [Merge(1, 2)]}, 1),
        ({5: [Split(0)], 35: [Merge(1, 2)]}, 1),
        ({5: [Split(0)], 36: [Merge(1, 2)]}, 0),
        ({1: [Split(0)], 2: [Split(1)], 3: [Split(2)]}, 0),
    ],
    ids=["back at once", "back after 30 minutes", "back after 31 minutes", "on in one direction"],
)
def test_a_reversal_is_a_turn_within_half_an_hour(acts: dict[int, list[Decision]], reversals: int) -> None:
    run = simulate(series(*[0.1] * 60), acting(acts))

    assert score(run).reversals == reversals


@pytest.mark.parametrize(
    ("load", "acts", "useless"),
    [
        (series(2.0, 2.0, shares=[0.96, 0.04]), {0: [Split(0)]}, 1),
        (series(2.0, 2.0, shares=[0.94, 0.06]), {0: [Split(0)]}, 0),
        (series(2.0, 2.0, shares=[0.0, 1.0]), {0: [Split(0)]}, 1),
        (series(2.0, 2.0, shares=[0.5, 0.5]), {0: [Split(0)]}, 0),
        (series(0.0, 0.0, 1.0), {0: [Split(0)], 1: [Merge(1, 2)]}, 0),
    ],
    ids=["4 %", "6 %", "nothing", "half", "a split of nothing, and a merge"],
)
def test_a_split_that_takes_off_next_to_nothing_is_useless(
    load: worlds.LoadSeries, acts: dict[int, list[Decision]], useless: int
) -> None:
    assert score(simulate(load, acting(acts))).useless_splits == useless


def test_clients_of_what_was_sealed_reconnect() -> None:
    run = simulate(series(0.1, 0.1, 0.1), acting({0: [Split(0)], 1: [Merge(1, 2)]}), Conditions(clients=7))

    assert score(run).reconnections == 7 + 2 * 7


def refusals_at_ticks(*refusals: Refusal) -> Callable[[int], Sequence[Refusal]]:
    """These at the ticks 3 to 5."""
    return lambda tick: refusals if 3 <= tick <= 5 else ()


def test_hot_and_nothing_said_is_silence() -> None:
    assert score(simulate(series(0.5, *[1.5] * 8, 0.5), acting({}))).silent_seconds == 480


@pytest.mark.parametrize("actuation_seconds", [120, 3600])
def test_an_act_ends_it_also_if_it_runs_beyond_the_end(actuation_seconds: int) -> None:
    conditions = Conditions(actuation_seconds=actuation_seconds)
    run = simulate(series(0.5, *[1.5] * 8), acting({4: [Split(0)]}), conditions)

    assert score(run).silent_seconds == 180


@pytest.mark.parametrize(
    ("refusal", "silent"),
    [
        (Refusal(0, Lane.LOAD, RefusalReason.SPLIT_COOLDOWN), 240),
        (Refusal(7, Lane.LOAD, RefusalReason.SPLIT_COOLDOWN), 600),
        (Refusal(None, None, RefusalReason.DISABLED), 240),
        (Refusal(None, Lane.MERGE, RefusalReason.DISABLED), 600),
    ],
)
def test_a_reason_ends_it_while_it_is_given(refusal: Refusal, silent: int) -> None:
    run = simulate(series(*[1.5] * 10), acting({}, refusals_at_ticks(refusal)))

    assert score(run).silent_seconds == silent


@pytest.mark.parametrize(
    ("refusals", "silent"),
    [
        ([], 600),
        ([Refusal(0, Lane.MERGE, RefusalReason.COLD_WINDOW, other_id=1)], 600),
        (
            [
                Refusal(1, Lane.MERGE, RefusalReason.COLD_WINDOW, other_id=0),
                Refusal(1, Lane.MERGE, RefusalReason.COLD_WINDOW, other_id=2),
            ],
            240,
        ),
        ([Refusal(0, Lane.MERGE, RefusalReason.SAVING_BELOW_PRICE, other_id=2)], 240),
        ([Refusal(0, Lane.LOAD, RefusalReason.LOWER_SCORE, other_id=2)], 600),
        ([Refusal(1, Lane.MERGE, RefusalReason.IN_FLIGHT)], 240),
        ([Refusal(None, Lane.MERGE, RefusalReason.AT_MIN_SEGMENTS)], 240),
    ],
)
def test_each_pair_of_cold_neighbours_wants_a_word(refusals: list[Refusal], silent: int) -> None:
    run = simulate(
        series(*[0.01] * 10), acting({}, refusals_at_ticks(*refusals)), Conditions(initial_segments=3)
    )

    assert score(run).silent_seconds == silent


@given(worlds.series(gaps=False), worlds.policies())
def test_pip483_is_never_silent_and_under_pulsars_own_rules_may_be(
    series: worlds.LoadSeries, policy: AutoScalePolicy
) -> None:
    found = score(simulate(series, worlds.pip483(policy)))

    assert found.silent_seconds == 0 or policy.strict_pulsar
