"""Costs on recorded loads, held against figures measured with another simulator: within 5 %.

Those figures are of series in steps of 10 s, in which every broker reports every 10 s and the rules are asked every 60 s.
Where a rule does not see the difference, the tests take steps of 60 s. `make chaos` has the long ones, `bench_policies` all of them in full.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest

from controller.backtest.load_series import LoadSeries, of_messages, trace
from controller.backtest.optimum import lower_bound
from controller.backtest.rivals.registry import RULES, rule_named
from controller.backtest.score import Prices, score
from controller.backtest.simulation import Conditions, simulate
from controller.domain.errors import InvalidInput
from controller.domain.policy import AutoScalePolicy

TRACES = os.environ.get("CLEAVE_TRACES")
needs_traces = pytest.mark.skipif(
    TRACES is None, reason="CLEAVE_TRACES names no directory with recorded traces"
)
POLICY = AutoScalePolicy(profile="pip483")
SPLIT = POLICY.thresholds.split.rates
REPORTED = Conditions(report_seconds=10)
COARSE = Conditions()
FORGETFUL = Conditions(retention_seconds=0)


@cache
def recorded(name: str, step_seconds: int) -> LoadSeries:
    assert TRACES is not None
    return trace(Path(TRACES), name, step_seconds=step_seconds)


@cache
def least(name: str, step_seconds: int) -> float:
    series = recorded(name, step_seconds)
    found = lower_bound(series.load(SPLIT), Prices(), step_seconds=step_seconds, most_segments=64)
    return float(found[0])


@needs_traces
@pytest.mark.parametrize("name", ["taxi", "tweets", "elb"])
def test_a_recorded_week_has_the_mean_load_it_is_scaled_to(name: str) -> None:
    series = recorded(name, 60)

    assert (series.steps, series.days) == (10_080, 7)
    assert series.load(SPLIT).mean() == pytest.approx(5.6)


@needs_traces
@pytest.mark.parametrize(
    ("rule", "conditions", "step_seconds", "regrets"),
    [
        ("pip483 strict", REPORTED, 10, {"taxi": 1.76}),
        pytest.param("pip483 strict", REPORTED, 10, {"tweets": 3.48, "elb": 3.89}, marks=pytest.mark.chaos),
        ("pip483 strict, merge 0.35", REPORTED, 10, {"taxi": 1.51}),
        ("pravega sf 2", COARSE, 60, {"taxi": 1.43}),
        ("ydb", COARSE, 60, {"taxi": 2.57}),
        pytest.param("kinesis on-demand 5 min", COARSE, 60, {"taxi": 5.12}, marks=pytest.mark.chaos),
        ("static peak", COARSE, 60, {"taxi": 2.13}),
        ("count 0.7", FORGETFUL, 60, {"taxi": 1.41}),
    ],
)
def test_the_regret_of_a_rule(
    rule: str, conditions: Conditions, step_seconds: int, regrets: dict[str, float]
) -> None:
    found = {}
    for name in regrets:
        series = recorded(name, step_seconds)
        cost = score(simulate(series, rule_named(rule, series, POLICY), conditions)).cost
        found[name] = cost / least(name, step_seconds)

    assert found == pytest.approx(regrets, rel=0.05)


def test_a_rule_that_is_not_there_is_refused_with_the_names_that_are() -> None:
    with pytest.raises(InvalidInput, match="rule 'hpa' is unknown") as refused:
        rule_named("hpa", of_messages("none", [0.0]), POLICY)

    assert all(name in str(refused.value) for name in RULES)
