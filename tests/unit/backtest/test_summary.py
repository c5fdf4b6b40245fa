"""Sums over the loads of a backtest, by policy and by load."""

from __future__ import annotations

from typing import Any

import pytest

from controller.backtest.summary import summary_by_load, summary_by_policy


def _row(load: str, policy: str, regret: float | None, **figures: Any) -> dict[str, Any]:
    return {"load": load, "policy": policy, "regret": regret, "cost": 2.0, "least_cost": 1.0, **figures}


ROWS = [
    _row("b", "idle", None, silent_seconds=7.0),
    _row("b", "calm", 4.0, reshapes=3, silent_seconds=5.0),
    _row("a", "calm", 1.0, reshapes=2, silent_seconds=9.0),
    _row("a", "calm", 0.0),
    _row("a", "busy", 1.5),
]


def test_regrets_have_a_geometric_mean_and_costs_a_sum() -> None:
    busy, calm, idle = summary_by_policy(ROWS)

    assert [row["policy"] for row in (busy, calm, idle)] == ["busy", "calm", "idle"]
    assert calm["regret"] == pytest.approx(2.0)  # of 4 and 1; a regret of 0 has no logarithm
    assert (calm["loads"], calm["cost"], calm["reshapes"], calm["silent_seconds"]) == (2, 6.0, 5, 9.0)
    assert idle["regret"] is None


def test_within_a_load_a_policy_without_a_regret_is_last() -> None:
    order = [(row["load"], row["policy"]) for row in summary_by_load(ROWS)]

    assert order == [("a", "calm"), ("a", "busy"), ("b", "calm"), ("b", "idle")]
