"""Sums up the results of a backtest over several loads: one row per policy, and one per load and policy.

The regret of a policy is the geometric mean of its regrets above 0; costs and most other figures are added up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

Row = dict[str, Any]

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


def summary_by_policy(rows: Sequence[Row]) -> list[Row]:
    """Return one summary row per policy, with the keys of `_of_policy`, over all loads and seeds; ordered by regret, then by
    name. A policy without a regret is last. `rows` are those of `actions.backtest_rows.result_rows`.
    """
    names = list(dict.fromkeys(row["policy"] for row in rows))
    return sorted((_of_policy(name, [r for r in rows if r["policy"] == name]) for name in names), key=_order)


def summary_by_load(rows: Sequence[Row]) -> list[Row]:
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
