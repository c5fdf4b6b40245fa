"""Results of a backtest as rows: one a policy over all loads, and one a load and policy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from controller.domain.shown import duration
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
BY_LOAD = ("load", *SUMMARY)
LOADS_SHOWN = 20
"""Loads that the terminal shows one by one; of more it shows the sums."""
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
    """Each result with all its figures, flat; `regret` is None where the least cost is 0."""
    return [
        {
            "load": one.load,
            "topic_id": one.topic_id,
            "policy": f"{one.policy} (ideal)" if one.figures.get("is_ideal") else one.policy,
            "seed": one.seed,
            "cost": one.cost,
            "least_cost": one.least_cost,
            "regret": _ratio(one.cost, one.least_cost),
            **one.figures,
        }
        for one in results
    ]


def summary(rows: Sequence[Row]) -> list[Row]:
    """One row a policy, the one with the least regret first: sums over loads and seeds, and of the regrets the geometric
    mean.
    """
    names = list(dict.fromkeys(row["policy"] for row in rows))
    return sorted((_of_policy(name, [r for r in rows if r["policy"] == name]) for name in names), key=_order)


def by_load(rows: Sequence[Row]) -> list[Row]:
    """One row a load and policy, over its seeds."""
    places = list(dict.fromkeys((row["load"], row["policy"]) for row in rows))
    found = [
        {"load": load} | _of_policy(policy, [r for r in rows if (r["load"], r["policy"]) == (load, policy)])
        for load, policy in places
    ]
    return sorted(found, key=lambda row: (row["load"], *_order(row)))


def cells(rows: Iterable[Row]) -> list[Row]:
    """For a table: regrets with two decimals, durations in words."""
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
    return (math.inf if row["regret"] is None else row["regret"], row["policy"])


def _ratio(cost: float, least: float) -> float | None:
    return cost / least if least else None
