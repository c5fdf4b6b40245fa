"""Split a segment by hand, in two at the midpoint, at cut points, or into equal parts.

Fill in the form and trigger. *Dry run* shows in the log which segments would be sealed and which would take over,
and changes nothing. Cooldowns and caps of the policy do not bind what a person asks for; a segment that is in an
operation already is refused.

A run stands for one request: clearing or retrying it finds the operation it started and never splits again.
The result (operation, epoch, children) is the XCom `return_value` of the task.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import Param, dag
from cleave_dags import access, by_hand, cleave_task, request, segment_param

from controller.entrypoints import tasks

CUT_POINTS = Param(
    None,
    type=["null", "string"],
    title="Cut points",
    description="The first hash of each new segment but the first: 0x4000, 0x8000 or 16384 32768. Empty: the midpoint.",
)
PARTS = Param(
    None,
    type=["null", "integer"],
    minimum=2,
    maximum=65536,
    title="Equal parts",
    description="Into so many segments of equal width, instead of cut points.",
)


@dag(
    dag_display_name="Cleave: split a segment",
    **by_hand(__doc__, segment=segment_param(), cut_points=CUT_POINTS, parts=PARTS),
)
def cleave_manual_split() -> None:
    @cleave_task(priority=10)
    def split(params: dict[str, Any]) -> dict[str, Any]:
        return tasks.split_segment(**access(), **request(), params=dict(params))

    split()


cleave_manual_split()
