"""Simulate each week what the policies in force would have cost in the last week, compared with two other
policies.

The result has one row per policy, ordered by regret. Nothing is changed.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import Param, dag, task

from cleave_provider.operators.cleave import BacktestOperator


@dag(
    schedule="@weekly",
    catchup=False,
    params={
        "namespace": Param("acme/shop", type="string"),
        "since": Param("7d", type="string"),
        "until": Param(None, type=["null", "string"]),
    },
    render_template_as_native_obj=True,
    doc_md=__doc__,
    tags=["cleave", "example"],
)
def example_cleave_backtest() -> None:
    week = BacktestOperator(
        task_id="week",
        policies=["in-force", "adaptive", "pip483"],
        namespace="{{ params.namespace }}",
        since="{{ params.since }}",
        until="{{ params.until }}",
        engine="here",
    )

    @task
    def best(result: Any) -> str:
        row = result["summary"][0]
        return f"{row['policy']} costs {row['regret']:.2f} times the least possible"

    best(week.output)


example_cleave_backtest()
