"""Each week: what the policies in force would have cost on the week that was, beside two others.

The answer has one row a policy, the one with the least regret first. Nothing is changed by it.
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
    def best(answer: Any) -> str:
        row = answer["summary"][0]
        return f"{row['policy']} costs {row['regret']:.2f} times the least possible"

    best(week.output)


example_cleave_backtest()
