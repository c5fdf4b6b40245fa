"""Bring a Pulsar cluster's bundles into balance: read the brokers, aggregate, propose, apply, look again.

Every `CLEAVE_BUNDLE_BALANCE_SECONDS` (300). Proposals of a namespace go as far as its mode says: `dry-run` (the
default) shows them, `approval` waits for a person to approve them (DAG `cleave_approvals` asks; DAG `bundle_approve`,
or `cleave approvals approve`), `automatic` applies them. A refusal of the broker is never answered by repeating the call: the bundle list is read
again.

What was proposed is in `inspect.bundles_proposals`, and why not more in `inspect.bundles_why_not`. `cleave bundles
replay` decides a stored cycle again. *Dry run* stops after the proposals.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import AssetAlias, dag
from cleave_dags import access, cleave_task, dry_run_param, every, ring, run_name, scheduled, seconds_from

from controller import tasks

DOORBELL = AssetAlias("cleave_acts_to_ask_about")
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

    @cleave_task(retries=2, outlets=[DOORBELL])
    def propose(outlet_events: Any = None) -> dict[str, Any]:
        cycle = tasks.propose_bundles(**access(), request_key=run_name(), decided_by=run_name())
        ring(cycle, outlet_events[DOORBELL])
        return cycle

    @cleave_task(retries=2)
    def apply(cycle: dict[str, Any], params: dict[str, Any]) -> dict[str, Any]:
        dry_run = params["dry_run"]
        return tasks.apply_bundles(
            **access(), cycle_id=cycle["cycle_id"], claimant=run_name(), dry_run=dry_run
        )

    @cleave_task(retries=2)
    def verify() -> dict[str, Any]:
        return tasks.verify_bundles(**access(), claimant=run_name())

    @cleave_task(retries=2)
    def keep() -> dict[str, Any]:
        return tasks.keep_bundles(**access())

    cycle = propose()
    collect() >> aggregate() >> cycle
    apply(cycle) >> verify() >> keep()


bundle_balance()
