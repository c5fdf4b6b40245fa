"""Give a segment another number of entry buckets by hand (PIP-486): more consumers can share it, or fewer need to.

A segment's buckets never change; a successor with the same range takes over. Fill in the form and trigger. *Dry run*
shows in the log what would be sealed and what would take over, and changes nothing.

A run stands for one request: clearing or retrying it finds the operation it started.
The result (operation, epoch, successor) is the XCom `return_value` of the task.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import Param, dag
from cleave_dags import access, by_hand, cleave_task, request, segment_param

from controller.entrypoints import tasks

BUCKETS = Param(
    type="integer",
    minimum=1,
    title="Buckets",
    description="Entry buckets of the successor; the cluster's policy sets the most.",
)


@dag(
    dag_display_name="Cleave: rebucket a segment",
    **by_hand(__doc__, segment=segment_param(), bucket_count=BUCKETS),
)
def cleave_manual_rebucket() -> None:
    @cleave_task(priority=10)
    def rebucket(params: dict[str, Any]) -> dict[str, Any]:
        return tasks.rebucket_segment(**access(), **request(), params=dict(params))

    rebucket()


cleave_manual_rebucket()
