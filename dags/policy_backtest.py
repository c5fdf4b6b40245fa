"""Simulate what policies would have cost on recorded load, compared with the least possible cost.

The decision rule of each policy runs on each topic's load, over a simulated layout: on Spark if there is much
to simulate. *Policies* are `in-force` (each topic's own), `adaptive` and `pip483`, with parameters such as
`adaptive:target_use=0.8,max_segments=128`. Without topics and namespace, all topics are simulated. Only the
list of backtests is changed.

The result has one row per policy, ordered by regret. `inspect.backtest_results` and `cleave backtests show`
have one row per topic. `left_out` names at most 100 topics without results, and `left_out_count` counts all.
A run stands for one request: a retry gets the stored results, and no topics without results (null).
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import Param, dag
from cleave_dags import access, asked_at, cleave_task, form, request

from controller import tasks

TOPICS = Param(
    None,
    type=["null", "string"],
    title="Topics",
    description="Names, separated by commas, spaces or line breaks. Empty: the topics of the namespace, or all topics.",
)
NAMESPACE = Param(
    None,
    type=["null", "string"],
    title="Namespace",
    description="Namespace whose topics are simulated: tenant/namespace.",
)
POLICIES = Param(
    ["in-force", "adaptive", "pip483"],
    type="array",
    items={"type": "string"},
    title="Policies",
    description="Policies, one per line: in-force, adaptive, pip483; parameters follow a colon.",
)
FROM = Param(
    "7d",
    type="string",
    title="From",
    description="Start of the load: an instant (2026-11-21T03:00:00Z), or a duration before the request (12h, 7d).",
)
TO = Param(
    None,
    type=["null", "string"],
    title="To",
    description="End of the load, in the same form. Empty: the time of the request.",
)
WEIGHTS = Param(
    "",
    type="string",
    title="Weights of the cost",
    description="Weights of the cost: excess=20,change_seconds=60,reseal_seconds=0; each may be left out.",
)
SEEDS = Param(
    1,
    type="integer",
    minimum=1,
    maximum=1000,
    title="Seeds",
    description="Number of random draws of each load.",
)
ENGINE = Param(
    None,
    type=["null", "string"],
    enum=[None, "spark", "here"],
    title="Engine",
    description="Engine of the simulation. Empty: by the amount of work.",
)


@dag(
    dag_display_name="Cleave: what policies would have cost",
    **form(
        __doc__, topics=TOPICS, namespace=NAMESPACE, policies=POLICIES, **{"from": FROM, "to": TO},
        weights=WEIGHTS, seeds=SEEDS, engine=ENGINE,
    ),
)  # fmt: skip
def policy_backtest() -> None:
    @cleave_task(retries=1)
    def simulate(params: dict[str, Any]) -> dict[str, Any]:
        return tasks.policy_backtest(
            **access(loader=True), **request(), asked_at=asked_at(), params=dict(params)
        )

    simulate()


policy_backtest()
