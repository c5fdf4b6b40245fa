"""Results of a backtest as rows, and the columns and texts in which tables show them. `backtest/summary` sums up several loads."""

from __future__ import annotations

from collections.abc import Iterable

from controller.backtest.summary import Row
from controller.domain.formatting import duration
from controller.store.backtests import BacktestResult

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
            "regret": result.cost / result.least_cost if result.least_cost else None,
            **result.figures,
        }
        for result in results
    ]


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
