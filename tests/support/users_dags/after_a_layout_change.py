"""A user's DAG that follows the layout of topics: one run for each changed topic, with its changes."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import Asset, PartitionedAssetTimetable, dag, task

LAYOUT = Asset(name="cleave_layout", uri="cleave://layout")


@dag(
    schedule=PartitionedAssetTimetable(assets=LAYOUT),
    catchup=False,
    is_paused_upon_creation=False,
)
def after_a_layout_change() -> None:
    @task(retries=3, retry_delay=timedelta(seconds=1))
    def tell(dag_run: Any = None, triggering_asset_events: Any = None) -> dict[str, Any]:
        events = triggering_asset_events[LAYOUT]
        return {"partition_key": dag_run.partition_key, "changes": [event.extra for event in events]}

    tell()


after_a_layout_change()
