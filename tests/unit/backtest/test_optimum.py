"""The least cost, held against trying everything."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.backtest.load_series import LoadSeries, of_messages
from controller.backtest.optimum import bounds, hash_floor, lower_bound
from controller.backtest.rule import of_policy, pip483
from controller.backtest.score import Prices, score
from controller.backtest.simulation import simulate
from controller.domain.errors import InvalidInput
from controller.domain.policy import AutoScalePolicy
from tests.unit.backtest import worlds

prices = st.builds(
    Prices, excess=st.sampled_from([0.5, 2.0, 20.0]), change_seconds=st.sampled_from([0.0, 60.0, 600.0])
)


def by_trying_all(loads: list[float], weights: Prices, most: int, first: int) -> float:
    """Every course of counts, priced one by one."""

    def cost(course: tuple[int, ...]) -> float:
        stay = sum(
            60 * (n + weights.excess * max(0.0, load - n)) for n, load in zip(course, loads, strict=True)
        )
        moves = sum(abs(b - a) for a, b in zip((first, *course), course, strict=False))
        return (stay + weights.change_seconds * moves) / 3600

    return min(cost(course) for course in product(range(1, most + 1), repeat=len(loads)))


@given(st.lists(st.floats(0, 6), min_size=1, max_size=6), prices, st.integers(1, 4), st.integers(1, 4))
def test_it_is_what_trying_every_course_finds(
    loads: list[float], weights: Prices, most: int, first: int
) -> None:
    first = min(first, most)

    found = lower_bound(np.array(loads), weights, step_seconds=60, most_segments=most, first=first)

    assert found == pytest.approx([by_trying_all(loads, weights, most, first)])


@given(st.lists(st.lists(st.floats(0, 9), min_size=5, max_size=5), min_size=1, max_size=4), prices)
def test_topics_side_by_side_cost_what_each_costs_alone(table: list[list[float]], weights: Prices) -> None:
    together = lower_bound(np.array(table), weights, step_seconds=60, most_segments=9)

    alone = [lower_bound(np.array(row), weights, step_seconds=60, most_segments=9)[0] for row in table]
    assert together.tolist() == pytest.approx(alone)


@given(worlds.series(), worlds.policies(), prices)
def test_no_run_is_cheaper(series: LoadSeries, policy: AutoScalePolicy, weights: Prices) -> None:
    run = simulate(series, pip483(policy=policy))

    load = series.load(policy.thresholds.split.rates)
    least = lower_bound(load, weights, step_seconds=60, most_segments=policy.max_segments)
    assert least[0] <= score(run, weights).cost * (1 + 1e-12)


CAPACITY = AutoScalePolicy().split_msg_rate_in
SPLIT = AutoScalePolicy().thresholds.split.rates


def hot_hashes(loads: list[float], weights: list[int]) -> LoadSeries:
    """All load on as many hashes as there are weights, far from each other."""
    shares = np.zeros((1, 65_536))
    shares[0, 1000 * np.arange(1, len(weights) + 1)] = np.array(weights) / sum(weights)
    return of_messages("hashes", np.array(loads) * CAPACITY, shares=shares)


def by_trying_all_layouts(loads: list[float], weights: list[int], price: Prices, most: int) -> float:
    """Every course of partitions, priced one by one; a partition is where the hot hashes are parted."""
    layouts = [
        (0, *(at for at, is_cut in enumerate(chosen, 1) if is_cut), len(weights))
        for chosen in product([False, True], repeat=len(weights) - 1)
    ]
    layouts = [layout for layout in layouts if len(layout) - 1 <= most]

    def cost(course: tuple[tuple[int, ...], ...]) -> float:
        total, before = 0.0, 1
        for load, layout in zip(loads, course, strict=True):
            parts = [load * sum(weights[a:b]) / sum(weights) for a, b in pairwise(layout)]
            excess = sum(max(0.0, part - 1) for part in parts)
            total += 60 * (len(parts) + price.excess * excess) + price.change_seconds * abs(
                len(parts) - before
            )
            before = len(parts)
        return total / 3600

    return min(cost(course) for course in product(layouts, repeat=len(loads)))


@given(
    st.lists(st.sampled_from([0.5, 1.5, 3.0, 5.0, 8.0]), min_size=1, max_size=3),
    st.lists(st.integers(1, 6), min_size=1, max_size=4),
    prices,
    st.integers(1, 5),
)
def test_the_best_course_of_layouts_lies_between_the_bounds(
    loads: list[float], weights: list[int], price: Prices, most: int
) -> None:
    found = bounds(hot_hashes(loads, weights), SPLIT, price, most_segments=most)

    best = by_trying_all_layouts(loads, weights, price, most)
    assert found.lower <= best * (1 + 1e-9)
    assert best <= found.upper * (1 + 1e-9)


@given(st.lists(st.floats(0.1, 9), min_size=1, max_size=20), prices)
def test_where_keys_are_spread_evenly_the_bounds_nearly_meet(loads: list[float], price: Prices) -> None:
    series = of_messages("even", np.array(loads) * CAPACITY)

    found = bounds(series, SPLIT, price, most_segments=16)

    least = lower_bound(np.array(loads), price, step_seconds=60, most_segments=16)[0]
    assert found.lower == pytest.approx(least, rel=0.01)
    assert found.upper == pytest.approx(least, rel=0.01)
    assert found.floor_hours == 0


def test_what_a_single_hash_has_too_much_is_the_floor() -> None:
    series = hot_hashes([4.0, 8.0, 1.0], [5, 2, 1])

    assert hash_floor(series, SPLIT) == pytest.approx([1.5, 4 + 1, 0])
    found = bounds(series, SPLIT, Prices(), most_segments=8)
    assert found.floor_hours == pytest.approx(6.5 / 60)


def test_a_bin_of_several_hashes_can_be_divided() -> None:
    half = np.array([[0.5, 0.5]])
    series = of_messages("halves", np.array([8.0]) * CAPACITY, shares=half)

    assert hash_floor(series, SPLIT).tolist() == [0.0]


def test_a_price_of_sealed_width_is_paid_by_the_upper_bound_only() -> None:
    series = of_messages("up", np.array([0.5, 3.0, 3.0]) * CAPACITY)
    free, dear = (
        bounds(series, SPLIT, Prices(reseal_seconds=price), most_segments=8) for price in (0.0, 60.0)
    )

    assert dear.lower == free.lower
    assert dear.upper == pytest.approx(free.upper + 1 / 60)


@given(worlds.series(gaps=False), worlds.policies(), prices)
def test_no_run_is_cheaper_than_the_bound_that_knows_the_keys(
    series: LoadSeries, policy: AutoScalePolicy, weights: Prices
) -> None:
    if series.shares is not None:
        series = replace(series, shares=series.shares[:1])

    run = simulate(series, of_policy(policy))

    found = bounds(series, policy.thresholds.split.rates, weights, most_segments=policy.max_segments)
    assert found.lower <= score(run, weights).cost * (1 + 1e-9)


def test_a_spread_that_changes_has_no_such_bounds() -> None:
    shares = np.array([[0.5, 0.5], [0.9, 0.1]])
    series = of_messages("moving", [1.0, 1.0], shares=shares)

    with pytest.raises(InvalidInput, match="changes from step to step"):
        bounds(series, SPLIT, Prices(), most_segments=4)
