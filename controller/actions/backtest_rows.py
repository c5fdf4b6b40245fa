"""Results of a backtest as rows: one per policy over all loads, and one per load and policy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from controller.domain.formatting import duration
from controller.store.backtests import BacktestResult

Row = dict[str, Any]

SUMMARY = (
    "policy",
    "regret",
    "cost",
    "least_cost",
    "segment_hours",
    "excess_hours",
    "overload",
    "reshapes",
    "rings_resealed",
    "silent",
)
"""Columns of a summary row that a table shows."""
BY_LOAD = ("load", *SUMMARY)
"""Columns of a row per load and policy that a table shows."""
LOADS_SHOWN = 20
"""Maximum number of loads that the terminal shows one by one; of more loads it shows the sums."""
_SUMS = (
    "segment_hours",
    "over_provisioned_hours",
    "excess_hours",
    "overload_seconds",
    "overloaded_segment_seconds",
    "reshapes",
    "rings_resealed",
    "reconnections",
    "reversals",
    "useless_splits",
)


def result_rows(results: Iterable[BacktestResult]) -> list[Row]:
    """Return each result with all its figures as a flat row; `regret` is the cost divided by the least cost, None
    if the least cost is 0. The name of an ideal policy ends in `(ideal)`.
    """
    return [
        {
            "load": result.load,
            "topic_id": result.topic_id,
            "policy": f"{result.policy} (ideal)" if result.figures.get("is_ideal") else result.policy,
            "seed": result.seed,
            "cost": result.cost,
            "least_cost": result.least_cost,
            "regret": _ratio(result.cost, result.least_cost),
            **result.figures,
        }
        for result in results
    ]


def summary(rows: Sequence[Row]) -> list[Row]:
    """Return one summary row per policy, with the keys of `_of_policy`, over all loads and seeds; ordered by regret, then by
    name. A policy without a regret is last. `rows` are those of `result_rows`.
    """
    names = list(dict.fromkeys(row["policy"] for row in rows))
    return sorted((_of_policy(name, [r for r in rows if r["policy"] == name]) for name in names), key=_order)


def by_load(rows: Sequence[Row]) -> list[Row]:
    """Return one summary row per load and policy, with `load` and the keys of `_of_policy`, over the seeds of the load;
    ordered by load, then by regret, then by name. A policy without a regret is the last of its load. `rows` are those of
    `result_rows`.
    """
    keys = list(dict.fromkeys((row["load"], row["policy"]) for row in rows))
    policy_rows = [
        {"load": load} | _of_policy(policy, [r for r in rows if (r["load"], r["policy"]) == (load, policy)])
        for load, policy in keys
    ]
    return sorted(policy_rows, key=lambda row: (row["load"], *_order(row)))


def cells(rows: Iterable[Row]) -> list[Row]:
    """Return copies of summary rows for a table: regrets and excess hours as text with two decimals, resealed rings as text with one
    decimal, reshapes as whole numbers, and durations in words in the added columns `overload` and `silent`.
    """
    return [
        {
            **row,
            "regret": None if row["regret"] is None else f"{row['regret']:.2f}",
            "excess_hours": f"{row['excess_hours']:.2f}",
            "rings_resealed": f"{row['rings_resealed']:.1f}",
            "reshapes": round(row["reshapes"]),
            "overload": duration(row["overload_seconds"]),
            "silent": duration(row["silent_seconds"]),
        }
        for row in rows
    ]


def _of_policy(policy: str, rows: Sequence[Row]) -> Row:
    """Return the summary row of a policy: `policy`, `loads` (the number of different loads; each has one row per seed), the sums of `cost`,
    `least_cost` and the figures `_SUMS` over the rows, `regret`, the geometric mean of the regrets above 0 (None without one), and
    `silent_seconds`, the longest silence. A missing figure counts as 0. `rows` are the rows of `result_rows` for this policy.
    """
    regrets = [row["regret"] for row in rows if row["regret"]]
    mean = math.exp(math.fsum(map(math.log, regrets)) / len(regrets)) if regrets else None
    return {
        "policy": policy,
        "loads": len({row["load"] for row in rows}),
        "regret": mean,
        "cost": math.fsum(row["cost"] for row in rows),
        "least_cost": math.fsum(row["least_cost"] for row in rows),
        **{name: math.fsum(row.get(name) or 0.0 for row in rows) for name in _SUMS},
        "silent_seconds": max((row.get("silent_seconds") or 0.0 for row in rows), default=0.0),
    }


def _order(row: Mapping[str, Any]) -> tuple[float, str]:
    """Return the sort key of a summary row: the regret, then the name of the policy. A row without a regret is
    last.
    """
    return (math.inf if row["regret"] is None else row["regret"], row["policy"])


def _ratio(cost: float, least: float) -> float | None:
    return cost / least if least else None
