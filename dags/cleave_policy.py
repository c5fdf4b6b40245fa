"""Set the auto-scale policy of the cluster, a namespace or a topic.

*Knobs* is a JSON object: `{"max_segments": 16, "split_cooldown_seconds": 30}`; null takes a knob back, so that the level above
applies. *Replace* forgets the level's other knobs. *Dry run* says which knobs would change and which topics would be treated
differently at once, and changes nothing. The pages of Cleave have a form with every knob and where its value comes from.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import Param, dag
from cleave_dags import access, cleave_task, dry_run_param, form, knobs_params, request

from controller.entrypoints import tasks

LEVEL = Param(
    type="string",
    title="Level",
    description="cluster, tenant/namespace, or topic://tenant/namespace/name.",
)


@dag(
    dag_display_name="Cleave: set an auto-scale policy",
    **form(__doc__, level=LEVEL, **knobs_params("the page of policies"), dry_run=dry_run_param()),
)
def cleave_policy() -> None:
    @cleave_task(priority=10)
    def set_policy(params: dict[str, Any]) -> dict[str, Any]:
        return tasks.set_policy(**access(), **request(), params=dict(params))

    set_policy()


cleave_policy()
