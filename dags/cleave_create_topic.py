"""Create a scalable topic of one or more equal segments.

Fill in the form and trigger. *Dry run* shows in the log which segments the topic would have, and changes nothing.
The policy's cap on segments does not bind a creation.

A run stands for one request: clearing or retrying it finds the operation it started.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import Param, dag
from cleave_dags import access, by_hand, cleave_task, request

from controller.entrypoints import tasks

SEGMENTS = Param(
    1, type="integer", minimum=1, maximum=65536, title="Segments", description="Equal segments to begin with."
)
DATA_PLANE = Param(
    "embedded",
    type="string",
    title="Data plane",
    examples=["embedded", "pulsar", "pulsar_scalable"],
    description="Where its logs live; it must be configured where Airflow's tasks run.",
)
PROPERTIES = Param(
    {},
    type="object",
    additionalProperties={"type": "string"},
    title="Properties",
    description='Names and texts, for instance {"retention_minutes": "60"}.',
)


@dag(
    dag_display_name="Cleave: create a topic",
    **by_hand(__doc__, segments=SEGMENTS, data_plane=DATA_PLANE, properties=PROPERTIES),
)
def cleave_create_topic() -> None:
    @cleave_task(priority=10)
    def create(params: dict[str, Any]) -> dict[str, Any]:
        return tasks.create_topic(**access(), **request(), params=dict(params))

    create()


cleave_create_topic()
