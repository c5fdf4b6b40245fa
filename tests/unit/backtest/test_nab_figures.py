"""Costs on recorded loads, held against figures measured with another simulator: within 5 %."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest

from controller.backtest.load_series import LoadSeries
from controller.backtest.nab import trace
from controller.backtest.optimum import lower_bound
from controller.backtest.rule import pip483
from controller.backtest.score import Prices, score
from controller.backtest.simulation import simulate
from controller.domain.policy import AutoScalePolicy

TRACES = os.environ.get("CLEAVE_TRACES")
pytestmark = pytest.mark.skipif(
    TRACES is None, reason="CLEAVE_TRACES names no directory with recorded traces"
)
SPLIT = AutoScalePolicy().thresholds.split.rates


@cache
def recorded(name: str) -> LoadSeries:
    assert TRACES is not None
    return trace(Path(TRACES), name)


@cache
def least(name: str) -> float:
    series = recorded(name)
    return float(
        lower_bound(series.load(SPLIT), Prices(), step_seconds=series.step_seconds, most_segments=64)[0]
    )


@pytest.mark.parametrize("name", ["taxi", "tweets", "elb"])
def test_a_recorded_week_has_the_mean_load_it_is_scaled_to(name: str) -> None:
    series = recorded(name)

    assert (series.steps, series.days) == (10_080, 7)
    assert series.load(SPLIT).mean() == pytest.approx(5.6)


@pytest.mark.parametrize(("name", "regret"), [("taxi", 1.76), ("tweets", 3.48)])
def test_pip483(name: str, regret: float) -> None:
    assert score(simulate(recorded(name), pip483())).cost / least(name) == pytest.approx(regret, rel=0.05)
