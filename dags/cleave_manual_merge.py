"""Merge two neighbouring segments by hand.

Fill in the form and trigger. *Dry run* shows in the log what would be sealed and what would take over, and changes
nothing. Cooldowns and caps of the policy do not bind what a person asks for; segments that are no neighbours, or in
an operation already, are refused.

A run stands for one request: clearing or retrying it finds the operation it started and never merges again.
The result (operation, epoch, child) is the XCom `return_value` of the task.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import dag
from cleave_dags import access, by_hand, cleave_task, request, segment_param

from controller.entrypoints import tasks


@dag(
    dag_display_name="Cleave: merge two segments",
    **by_hand(__doc__, first=segment_param("First segment"), second=segment_param("Its neighbour")),
)
def cleave_manual_merge() -> None:
    @cleave_task(priority=10)
    def merge(params: dict[str, Any]) -> dict[str, Any]:
        return tasks.merge_segments(**access(), **request(), params=dict(params))

    merge()


cleave_manual_merge()
