"""Hypothesis strategies: loads, policies and conditions that bring a rule to act."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from controller.backtest.load_series import LoadSeries
from controller.backtest.rule import Rule, of_policy
from controller.backtest.simulation import Conditions
from controller.domain.evaluation_input import Capabilities
from controller.domain.policy import AutoScalePolicy

START = 1_800_000_000_000
LEVELS = (0.0, 0.02, 0.3, 0.9, 1.1, 3.0, 20.0)
"""Of a topic's load, in capacities."""


@st.composite
def loads(draw: st.DrawFn, most_ticks: int = 120) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Levels held for a while, with jitter on top: every threshold is crossed, fast and slowly."""
    pieces = []
    seed = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    left = draw(st.integers(1, most_ticks))
    while left:
        length = min(left, draw(st.integers(1, 40)))
        level = draw(st.sampled_from(LEVELS))
        pieces.append(level * (1 + draw(st.sampled_from([0.0, 0.05, 0.4])) * seed.uniform(-1, 1, length)))
        left -= length
    return np.concatenate(pieces)


@st.composite
def series(draw: st.DrawFn, *, gaps: bool = True, step_seconds: int = 60) -> LoadSeries:
    """Four metrics of which some are idle, keys spread evenly or not, with or without gaps."""
    load = draw(loads())
    rates = np.zeros((len(load), 4))
    for metric, capacity in enumerate((10_000.0, 5e7, 5e4, 2.5e8)):
        if metric == 0 or draw(st.integers(0, 3)) == 0:
            rates[:, metric] = load * capacity * draw(st.sampled_from([1.0, 0.6]))
    if gaps and draw(st.booleans()):
        begin = draw(st.integers(0, len(load) - 1))
        rates[begin : begin + draw(st.integers(1, 12))] = np.nan
    return LoadSeries("drawn", START, rates, step_seconds, draw(_shares(len(load))))


def _shares(steps: int) -> st.SearchStrategy[np.ndarray[Any, np.dtype[np.float64]] | None]:
    def of_seed(seed: int, rows: int, bins: int) -> np.ndarray[Any, np.dtype[np.float64]]:
        weights = np.random.default_rng(seed).pareto(1.2, (rows, bins)) + 1e-9
        return weights / weights.sum(axis=1, keepdims=True)

    return st.none() | st.builds(
        of_seed, st.integers(0, 1000), st.sampled_from([1, steps]), st.sampled_from([1, 4, 64])
    )


@st.composite
def policies(draw: st.DrawFn) -> AutoScalePolicy:
    """Of the profile pip483: its thresholds near each other or far apart, its waits long or none."""
    merge = draw(st.sampled_from([0.0, 1_000.0, 3_500.0, 8_000.0]))
    return AutoScalePolicy(
        max_segments=draw(st.sampled_from([2, 8, 64])),
        max_dag_depth=draw(st.sampled_from([1, 10])),
        merge_msg_rate_in=merge,
        split_cooldown_seconds=draw(st.sampled_from([0, 60, 90, 300])),
        merge_cooldown_seconds=draw(st.sampled_from([0, 60, 300])),
        merge_window_seconds=draw(st.sampled_from([0, 120, 300])),
        load_stale_after_seconds=draw(st.sampled_from([60, 300])),
        bucket_idle_seconds=draw(st.sampled_from([60, 3_600])),
        strict_pulsar=draw(st.integers(0, 3)) == 0,
    )


@st.composite
def conditions(draw: st.DrawFn, steps: int) -> Conditions:
    """Acts at once or late, consumers or none, few segments at first or many."""
    consumers = None
    if draw(st.booleans()):
        seed = np.random.default_rng(draw(st.integers(0, 1000)))
        consumers = np.repeat(seed.integers(0, 12, 1 + steps // 10), 10)[:steps]
    return Conditions(
        tick_seconds=draw(st.sampled_from([60, 60, 180])),
        window_seconds=draw(st.sampled_from([60, 60, 120])),
        report_seconds=draw(st.sampled_from([None, None, 60])),
        actuation_seconds=draw(st.sampled_from([0, 0, 30, 60, 150])),
        initial_segments=draw(st.sampled_from([1, 1, 4])),
        retention_seconds=draw(st.sampled_from([0, 600, 86_400])),
        capabilities=Capabilities(max_children=65_536, recut=True, shared_buckets=draw(st.booleans())),
        consumers=consumers,
    )


def pip483(policy: AutoScalePolicy | None = None) -> Rule:
    """The rule named `pip483`, by a policy that may name any profile; None: by the default policy of `pip483`."""
    return of_policy(policy or AutoScalePolicy(profile="pip483"), "pip483")
