"""Maintain Cleave: compare metadata and data plane, collect garbage, delete superfluous logs, and keep the
partitions of the decision log.

Runs every `CLEAVE_MAINTENANCE_SECONDS` (900). A run processes all topics of a small fleet, and a
random part of a large one.

- *reconcile* finds logs that are missing, terminated or unmanaged, and repairs the differences that can be
  repaired.
- *collect_garbage* prunes sealed segments past their retention (`CLEAVE_RETENTION_MINUTES`, or the topic's
  property `retention_minutes`) that every subscription has read.
- *keep_landing* compacts and deletes files, and finishes the history of aggregation runs that were killed.
- *sweep_deletion_entries* deletes superfluous logs. In the embedded logs it deletes messages that every
  subscription has read and that are old enough (`CLEAVE_EMBEDDED_RETENTION_SECONDS`).
- *keep_partitions* creates the partitions of the decision log for the coming days, drops old ones, and
  deletes old backtests (`CLEAVE_BACKTEST_KEEP_DAYS`).

*Dry run* logs what would be done.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import Param, dag
from cleave_dags import (
    PASS_SHARES,
    access,
    cleave_task,
    days_from,
    dry_run_param,
    every,
    scheduled,
    seconds_from,
)

from cleave_provider.assets.cleave import LAYOUT
from controller import tasks
from controller.tasks.maintenance import round_seconds
from controller.tasks.row_retention import MOST_KEEP_DAYS

SECONDS = seconds_from("CLEAVE_MAINTENANCE_SECONDS", 900)
DECISION_LOG_DAYS = Param(
    days_from("CLEAVE_LEDGER_DAYS", 90),
    type="integer",
    minimum=1,
    maximum=MOST_KEEP_DAYS,
    title="Days of decisions to keep",
    description="Days of the decision log that ended longer ago are dropped, but never the last 30 days. Default: CLEAVE_LEDGER_DAYS.",
)


@dag(
    dag_display_name="Cleave: maintenance",
    schedule=every(SECONDS),
    # Twice the time of the budgets: the last page of a share may exceed its budget, and tasks take time to start.
    **scheduled(
        max(SECONDS, round(round_seconds(PASS_SHARES))),
        __doc__,
        keep_days=DECISION_LOG_DAYS,
        dry_run=dry_run_param(),
    ),
)
def cleave_maintenance() -> None:
    @cleave_task()
    def keep_partitions(params: dict[str, Any]) -> dict[str, list[str]]:
        return tasks.keep_partitions(**access(), keep_days=params["keep_days"], dry_run=params["dry_run"])

    @cleave_task()
    def keep_landing(params: dict[str, Any]) -> dict[str, Any]:
        return tasks.keep_landing(**access(), dry_run=params["dry_run"])

    @cleave_task()
    def fleet_shares() -> list[dict[str, int]]:
        return tasks.fleet_shares(**access())

    # This task reads layouts. Its inlet makes their asset known to Airflow before another DAG waits for it.
    @cleave_task(max_active_tis_per_dagrun=PASS_SHARES, inlets=[LAYOUT])
    def reconcile(share: dict[str, int], params: dict[str, Any]) -> dict[str, Any]:
        return tasks.reconcile_share(**access(), share=share, dry_run=params["dry_run"])

    @cleave_task(max_active_tis_per_dagrun=PASS_SHARES)
    def collect_garbage(share: dict[str, int], params: dict[str, Any]) -> dict[str, Any]:
        return tasks.collect_garbage(**access(), share=share, dry_run=params["dry_run"])

    @cleave_task(trigger_rule="all_done")
    def sweep_deletion_entries(params: dict[str, Any]) -> dict[str, Any]:
        return tasks.sweep_deletion_entries(**access(), dry_run=params["dry_run"])

    keep_partitions()
    keep_landing()
    shares = fleet_shares()
    reconcile.expand(share=shares) >> collect_garbage.expand(share=shares) >> sweep_deletion_entries()


cleave_maintenance()
