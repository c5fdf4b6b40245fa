"""Keep house: compare books and data plane, collect garbage, delete superfluous logs, keep the ledger's days.

Every `CLEAVE_MAINTENANCE_SECONDS` (900). *reconcile* finds logs that are missing, closed or nobody's and puts right
what can be; *collect_garbage* prunes sealed segments past their retention (`CLEAVE_RETENTION_MINUTES`, or the topic's
property `retention_minutes`) that every subscription has read; *keep_landing* compacts and expires files, and finishes
the history of aggregation runs that were killed; *sweep_tombstones* deletes logs nobody needs, and of the embedded logs
what everybody has read and what is old enough (`CLEAVE_EMBEDDED_RETENTION_SECONDS`); *keep_partitions* makes the
ledger's tables for the days to come, drops old ones, and forgets old backtests (`CLEAVE_BACKTEST_KEEP_DAYS`). A large fleet is gone through in rounds of a few shares.

*Dry run* lists in the log what would be done.
"""

from __future__ import annotations

import os
from typing import Any

from airflow.sdk import Param, dag
from cleave_dags import (
    PASS_SHARES,
    access,
    cleave_task,
    dry_run_param,
    every,
    scheduled,
    seconds_from,
    turn,
)

from cleave_provider.assets.cleave import LAYOUT
from controller import tasks

SECONDS = seconds_from("CLEAVE_MAINTENANCE_SECONDS", 900)
KEEP_DAYS = Param(
    int(os.environ.get("CLEAVE_LEDGER_DAYS", "90")),
    type="integer",
    minimum=1,
    title="Days of decisions to keep",
    description="Days of the ledger that ended longer ago are dropped, and none of the last 30 days. CLEAVE_LEDGER_DAYS is the default.",
)


@dag(
    dag_display_name="Cleave: maintenance",
    schedule=every(SECONDS),
    **scheduled(SECONDS, __doc__, keep_days=KEEP_DAYS, dry_run=dry_run_param()),
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
        return tasks.fleet_shares(**access(), turn=turn(SECONDS))

    # reads layouts, and makes their asset known to Airflow before anybody's DAG waits for it
    @cleave_task(max_active_tis_per_dagrun=PASS_SHARES, inlets=[LAYOUT])
    def reconcile(share: dict[str, int], params: dict[str, Any]) -> dict[str, Any]:
        return tasks.reconcile_share(**access(), share=share, dry_run=params["dry_run"])

    @cleave_task(max_active_tis_per_dagrun=PASS_SHARES)
    def collect_garbage(share: dict[str, int], params: dict[str, Any]) -> dict[str, Any]:
        return tasks.collect_garbage(**access(), share=share, dry_run=params["dry_run"])

    @cleave_task(trigger_rule="all_done")
    def sweep_tombstones(params: dict[str, Any]) -> dict[str, Any]:
        return tasks.sweep_tombstones(**access(), dry_run=params["dry_run"])

    keep_partitions()
    keep_landing()
    shares = fleet_shares()
    reconcile.expand(share=shares) >> collect_garbage.expand(share=shares) >> sweep_tombstones()


cleave_maintenance()
