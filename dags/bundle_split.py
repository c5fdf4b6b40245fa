"""Split a Pulsar bundle by hand, where an algorithm, positions or topics say.

*Dry run* shows the parts and what each would carry. A retry finds the cuts that were made and changes nothing.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import Param, dag
from cleave_dags import access, bundle_param, cleave_task, dry_run_param, form

from controller.entrypoints import tasks

ALGORITHM = Param(
    None,
    type=["null", "string"],
    title="Algorithm",
    description="By name, as in the setting bundle_split_algorithms; empty: what the other fields imply.",
)
POSITIONS = Param(
    None,
    type=["null", "array"],
    items={"type": "string"},
    title="Positions",
    description="One a line: where to cut, 0x40000000.",
)
TOPICS = Param(
    None,
    type=["null", "array"],
    items={"type": "string"},
    title="Topics",
    description="One a line: topics to isolate, or to divide by.",
)
PARTS = Param(2, type="integer", minimum=2, maximum=128, title="Parts", description="Of an even division.")
UNLOAD = Param(
    False, type="boolean", title="Unload the parts", description="At once, so that they find owners anew."
)


@dag(
    dag_display_name="Cleave: split a bundle",
    **form(
        __doc__,
        bundle=bundle_param(),
        algorithm=ALGORITHM,
        positions=POSITIONS,
        topics=TOPICS,
        parts=PARTS,
        unload=UNLOAD,
        dry_run=dry_run_param(),
    ),
)
def bundle_split() -> None:
    @cleave_task(priority=10)
    def split(params: dict[str, Any]) -> dict[str, Any]:
        return tasks.split_bundle(**access(), params=dict(params))

    split()


bundle_split()
