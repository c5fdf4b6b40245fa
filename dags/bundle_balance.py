"""Balance the bundles of a Pulsar cluster: read the brokers, aggregate, propose, apply, verify. Delete old data.

Runs every `CLEAVE_BUNDLE_BALANCE_SECONDS` (300). The mode of a namespace determines what happens to its
proposals: `dry-run` (the default) shows them, `approval` requests a person's approval (DAG
`cleave_approvals`, DAG `bundle_approve`, or `cleave approvals approve`), `automatic` applies them. If a
broker refuses a call, the call is not repeated: the bundle list is read again.

`inspect.bundles_proposals` has the proposals, and `inspect.bundles_why_not` the reasons why there are no
more. `cleave bundles replay` decides a stored cycle again. *Dry run* stops after the proposals,
and deletes nothing. Old data is deleted even if the other tasks fail.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import dag
from cleave_dags import (
    WAITING_ACTS_ALIAS,
    access,
    cleave_task,
    dry_run_param,
    emit_waiting_event,
    every,
    run_name,
    scheduled,
    seconds_from,
)

from controller import tasks

SECONDS = seconds_from("CLEAVE_BUNDLE_BALANCE_SECONDS", 300)


@dag(
    dag_display_name="Cleave: balance bundles",
    schedule=every(SECONDS),
    is_paused_upon_creation=True,
    **scheduled(SECONDS, __doc__, dry_run=dry_run_param()),
)
def bundle_balance() -> None:
    @cleave_task(retries=2)
    def collect() -> dict[str, Any]:
        return tasks.collect_bundles(**access())

    @cleave_task(retries=2)
    def aggregate() -> dict[str, Any]:
        return tasks.aggregate_bundles(**access(loader=True), run_id=run_name())

    @cleave_task(retries=2, outlets=[WAITING_ACTS_ALIAS])
    def propose(outlet_events: Any = None) -> dict[str, Any]:
        cycle = tasks.propose_bundles(**access(), request_key=run_name(), decided_by=run_name())
        emit_waiting_event(cycle, outlet_events[WAITING_ACTS_ALIAS])
        return cycle

    @cleave_task(retries=2)
    def apply(cycle: dict[str, Any], params: dict[str, Any]) -> dict[str, Any]:
        dry_run = params["dry_run"]
        return tasks.apply_bundles(
            **access(), cycle_id=cycle["cycle_id"], claimant=run_name(), dry_run=dry_run
        )

    @cleave_task(retries=2)
    def verify(params: dict[str, Any]) -> dict[str, Any]:
        return tasks.verify_bundles(**access(), claimant=run_name(), dry_run=params["dry_run"])

    @cleave_task(retries=2)
    def keep(params: dict[str, Any]) -> dict[str, Any]:
        return tasks.keep_bundles(**access(), dry_run=params["dry_run"])

    cycle = propose()
    collect() >> aggregate() >> cycle
    apply(cycle) >> verify()
    keep()  # Depends on no task: otherwise data would grow while balancing fails, for example without Spark.


bundle_balance()
