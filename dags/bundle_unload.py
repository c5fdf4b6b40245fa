"""Take a Pulsar bundle from its owner by hand, towards a broker if one is named. *Dry run* shows who owns it."""

from __future__ import annotations

from typing import Any

from airflow.sdk import Param, dag
from cleave_dags import access, bundle_param, cleave_task, dry_run_param, form

from controller.entrypoints import tasks

DESTINATION = Param(
    None,
    type=["null", "string"],
    title="Destination",
    description="host:port as brokers are listed; empty: where the brokers choose.",
)


@dag(
    dag_display_name="Cleave: unload a bundle",
    **form(__doc__, bundle=bundle_param(), destination=DESTINATION, dry_run=dry_run_param()),
)
def bundle_unload() -> None:
    @cleave_task(priority=10)
    def unload(params: dict[str, Any]) -> dict[str, Any]:
        return tasks.unload_bundle(**access(), params=dict(params))

    unload()


bundle_unload()
