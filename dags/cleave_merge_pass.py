"""Decide which neighbouring segments have been cold for long enough to merge, and start their merges.

Runs every `CLEAVE_MERGE_PASS_SECONDS` (300). The pass evaluates every topic whose result in the merge lane
may have changed. If no worker is running, the pass also runs the operations. Many topics are divided into a
few mapped shares; the rest waits for the next pass.

Actions for which a policy requires approval await a person; the DAG `cleave_approvals` presents them.
`inspect.decisions`, `inspect.why_not` and `cleave decisions` have the decisions and their reasons. *Dry run*
only logs the decisions.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import AssetAlias, dag
from cleave_dags import (
    PASS_SHARES,
    access,
    cleave_task,
    dry_run_param,
    every,
    run_name,
    scheduled,
    seconds_from,
    shares_left,
)

from controller import tasks

WAITING_ACTS_ALIAS = AssetAlias("cleave_acts_to_ask_about")
SECONDS = seconds_from("CLEAVE_MERGE_PASS_SECONDS", 300)


@dag(
    dag_display_name="Cleave: merge pass",
    schedule=every(SECONDS),
    **scheduled(SECONDS, __doc__, dry_run=dry_run_param()),
)
def cleave_merge_pass() -> None:
    @cleave_task(retries=2, priority=5, outlets=[WAITING_ACTS_ALIAS])
    def drain(params: dict[str, Any], outlet_events: Any = None) -> list[dict[str, int]]:
        result = tasks.merge_pass(**access(), decided_by=run_name(), dry_run=params["dry_run"])
        return shares_left(result, outlet_events[WAITING_ACTS_ALIAS])

    @cleave_task(retries=2, priority=5, max_active_tis_per_dagrun=PASS_SHARES)
    def drain_share(share: dict[str, int]) -> dict[str, Any]:
        return tasks.merge_pass(**access(), decided_by=run_name(), share=share)

    drain_share.expand(share=drain())


cleave_merge_pass()
