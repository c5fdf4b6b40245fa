"""Say what policies would have cost on the load that was recorded, and how far that is from the best possible.

Each topic's load goes through each policy's own decisions, over a simulated layout: on Spark where there is much to do.
*Policies* are `in-force` (each topic's own), `adaptive` and `pip483`, with parameters as `adaptive:target_use=0.8,max_segments=128`.
Neither topics nor a namespace means all topics. Nothing is changed but the list of backtests.

The result has one row a policy, the one with the least regret first; `inspect.backtest_results` and `cleave backtests show`
have one a topic. A run stands for one request: a retry gets the results that are there.
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
    description="Names with commas, spaces or lines between them. Empty: those of the namespace, or all.",
)
NAMESPACE = Param(None, type=["null", "string"], title="Namespace", description="tenant/namespace.")
POLICIES = Param(
    ["in-force", "adaptive", "pip483"],
    type="array",
    items={"type": "string"},
    title="Policies",
    description="One a line: in-force, adaptive, pip483; parameters after a colon.",
)
FROM = Param("7d", type="string", title="From", description="2026-11-21T03:00:00Z, or so long ago: 12h, 7d.")
TO = Param(None, type=["null", "string"], title="To", description="The same; empty: when it was asked.")
WEIGHTS = Param(
    "",
    type="string",
    title="Weights of the cost",
    description="excess=20,change_seconds=60,reseal_seconds=0; each may be left out.",
)
SEEDS = Param(
    1, type="integer", minimum=1, maximum=1000, title="Seeds", description="So many draws of each load."
)
ENGINE = Param(
    None,
    type=["null", "string"],
    enum=[None, "spark", "here"],
    title="Engine",
    description="Empty: by the work.",
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
