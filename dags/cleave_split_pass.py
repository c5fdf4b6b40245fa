"""Decide which topics split, and start their splits.

Woken by fresh load (asset `cleave_load`, updated by `cleave_load_aggregation`), and every `CLEAVE_SPLIT_PASS_SECONDS`
(300) in any case. It drains every topic whose answer may have changed: the load lane, and where no worker is up the
consumer lane too; then it also runs the operations, which a worker does otherwise. Many topics are divided into a few
mapped shares. What these leave waits for the next pass.

Acts that a policy marks wait for a person; the DAG `cleave_approvals` asks. What was decided and why: `inspect.decisions`,
`inspect.why_not`, or `cleave decisions`. *Dry run* decides in the log only.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import AssetAlias, dag
from cleave_dags import (
    FRESH_LOAD,
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

from cleave_provider.versions import AssetOrTimeSchedule
from controller import tasks

DOORBELL = AssetAlias("cleave_acts_to_ask_about")
SECONDS = seconds_from("CLEAVE_SPLIT_PASS_SECONDS", 300)


@dag(
    dag_display_name="Cleave: split pass",
    schedule=AssetOrTimeSchedule(timetable=every(SECONDS), assets=FRESH_LOAD),
    **scheduled(SECONDS, __doc__, dry_run=dry_run_param()),
)
def cleave_split_pass() -> None:
    @cleave_task(retries=2, priority=5, outlets=[DOORBELL])
    def drain(params: dict[str, Any], outlet_events: Any = None) -> list[dict[str, int]]:
        done = tasks.split_pass(**access(), decided_by=run_name(), dry_run=params["dry_run"])
        return shares_left(done, outlet_events[DOORBELL])

    @cleave_task(retries=2, priority=5, max_active_tis_per_dagrun=PASS_SHARES)
    def drain_share(share: dict[str, int]) -> dict[str, Any]:
        return tasks.split_pass(**access(), decided_by=run_name(), share=share)

    drain_share.expand(share=drain())


cleave_split_pass()
