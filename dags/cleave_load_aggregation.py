"""Turn the counter samples that the collector landed into load records, and wake the split pass if it has work.

Every `CLEAVE_AGGREGATION_SECONDS` (60). Spark computes rates over the last minute (where: connection `cleave_spark`,
else `SPARK_MASTER`; a Spark Connect server is warm, `spark://` and `local[2]` start a session each time; without Java
the same query runs in PostgreSQL) and what changed materially is written. Runs and what they set aside:
`inspect.load_runs`.

The asset `cleave_load` is a doorbell: it gets an event only when there is something to decide. *Dry run* names the
files that a run would read.
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
DOORBELL = AssetAlias("cleave_fresh_load")


@dag(
    dag_display_name="Cleave: load aggregation",
    schedule=every(SECONDS),
    **scheduled(SECONDS, __doc__, dry_run=dry_run_param()),
)
def cleave_load_aggregation() -> None:
    @cleave_task(retries=1, priority=5, outlets=[DOORBELL])
    def aggregate(params: dict[str, Any], outlet_events: Any = None) -> dict[str, Any]:
        result = tasks.aggregate_load(**access(loader=True), run_id=run_name(), dry_run=params["dry_run"])
        if not params["dry_run"] and tasks.split_pass_has_work(**access()):
            outlet_events[DOORBELL].add(FRESH_LOAD, extra={"run_id": result["run_id"]})
        return result

    aggregate()


cleave_load_aggregation()
