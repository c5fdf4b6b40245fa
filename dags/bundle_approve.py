"""Approve or refuse what the DAG `bundle_balance` proposed; its next run carries out what is approved."""

from __future__ import annotations

from typing import Any

from airflow.sdk import Param, dag
from cleave_dags import access, cleave_task, form, request

from controller.entrypoints import tasks

PROPOSALS = Param(
    type="array",
    items={"type": "integer"},
    title="Proposals",
    description="One a line: ids of inspect.bundles_proposals.",
)
REFUSE = Param(
    None,
    type=["null", "string"],
    title="Refuse, because",
    description="Empty: approve them. Else refuse them.",
)


@dag(
    dag_display_name="Cleave: approve bundle proposals",
    **form(__doc__, proposals=PROPOSALS, refuse=REFUSE),
)
def bundle_approve() -> None:
    @cleave_task(priority=10)
    def approve(params: dict[str, Any]) -> list[dict[str, Any]]:
        return tasks.approve_bundles(**access(), **request(), params=dict(params))

    approve()


bundle_approve()
