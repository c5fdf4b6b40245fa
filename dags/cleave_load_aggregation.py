"""Compute load records from the counter samples that the collector landed, and start the split pass if it has
work.

Runs every `CLEAVE_AGGREGATION_SECONDS` (60). Spark computes rates over the last minute, and records that
changed materially are written. The connection `cleave_spark`, or else `SPARK_MASTER`, selects Spark: a Spark
Connect server is always ready, `spark://` and `local[2]` start a session for each run. Without Java the same
query runs in PostgreSQL. `inspect.load_runs` has the runs and the data that they set aside.

The asset `cleave_load` gets an event only if there is something to decide. *Dry run* lists the files that a
run would read.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import AssetAlias, dag
from cleave_dags import (
    FRESH_LOAD,
    access,
    cleave_task,
    dry_run_param,
    every,
    run_name,
    scheduled,
    seconds_from,
)

from controller import tasks

SECONDS = seconds_from("CLEAVE_AGGREGATION_SECONDS", 60)
FRESH_LOAD_ALIAS = AssetAlias("cleave_fresh_load")


@dag(
    dag_display_name="Cleave: load aggregation",
    schedule=every(SECONDS),
    **scheduled(SECONDS, __doc__, dry_run=dry_run_param()),
)
def cleave_load_aggregation() -> None:
    @cleave_task(retries=1, priority=5, outlets=[FRESH_LOAD_ALIAS])
    def aggregate(params: dict[str, Any], outlet_events: Any = None) -> dict[str, Any]:
        result = tasks.aggregate_load(**access(loader=True), run_id=run_name(), dry_run=params["dry_run"])
        if not params["dry_run"] and tasks.split_pass_has_work(**access()):
            outlet_events[FRESH_LOAD_ALIAS].add(FRESH_LOAD, extra={"run_id": result["run_id"]})
        return result

    aggregate()


cleave_load_aggregation()
