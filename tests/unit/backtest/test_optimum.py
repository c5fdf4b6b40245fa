"""The least cost, held against trying everything."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.backtest.load_series import LoadSeries
from controller.backtest.optimum import lower_bound
from controller.backtest.score import Prices, score
from controller.backtest.simulation import simulate
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
    run = simulate(series, worlds.pip483(policy))

    load = series.load(policy.thresholds.split.rates)
    least = lower_bound(load, weights, step_seconds=60, most_segments=policy.max_segments)
    assert least[0] <= score(run, weights).cost * (1 + 1e-12)
