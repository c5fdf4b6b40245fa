"""A user's DAG that follows the layout of topics with an Airflow without partitions: a run may have several topics."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import Asset, dag, task

LAYOUT = Asset(name="cleave_layout", uri="cleave://layout")


@dag(schedule=LAYOUT, catchup=False, is_paused_upon_creation=False)
def after_a_layout_change() -> None:
    @task(retries=3, retry_delay=timedelta(seconds=1))
    def tell(triggering_asset_events: Any = None) -> dict[str, Any]:
        return {"changes": [event.extra for event in triggering_asset_events[LAYOUT]]}

    tell()


after_a_layout_change()
