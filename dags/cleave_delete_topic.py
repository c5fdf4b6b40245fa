"""Delete a scalable topic and every log behind it, **unread messages included**.

Fill in the form, name the topic twice, and trigger. *Dry run* shows in the log what would be lost, and changes
nothing. From the request on the topic takes no other one; reshapes under way end first.

A run stands for one request: clearing or retrying it finds the operation it started.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import Param, dag
from cleave_dags import access, by_hand, cleave_task, request

from controller.entrypoints import tasks

CONFIRM = Param(
    "",
    type="string",
    title="The topic once more",
    description="Type the topic's name again: there is no way back. Not needed for a dry run.",
)


@dag(dag_display_name="Cleave: delete a topic", **by_hand(__doc__, confirm=CONFIRM))
def cleave_delete_topic() -> None:
    @cleave_task(priority=10)
    def delete(params: dict[str, Any]) -> dict[str, Any]:
        return tasks.delete_topic(**access(), **request(), params=dict(params))

    delete()


cleave_delete_topic()
