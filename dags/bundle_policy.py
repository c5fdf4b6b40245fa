"""Set when and how the bundles of a Pulsar namespace are split.

*Knobs* is a JSON object: `{"max_topics": 500, "cooldown_seconds": 600}`; null takes a knob back to its default. What
is in force then is the result. *Dry run* checks and shows it, and changes nothing. Empty knobs only show.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import Param, dag
from cleave_dags import access, cleave_task, dry_run_param, form, knobs_params, request

from controller.entrypoints import tasks

NAMESPACE = Param(
    type="string",
    title="Namespace",
    description="tenant/namespace.",
    pattern=r"^\s*[^/\s]+/[^/\s]+\s*$",
)


@dag(
    dag_display_name="Cleave: set the split policy of a namespace",
    **form(__doc__, namespace=NAMESPACE, **knobs_params("`cleave bundles policy`"), dry_run=dry_run_param()),
)
def bundle_policy() -> None:
    @cleave_task(priority=10)
    def set_policy(params: dict[str, Any]) -> dict[str, Any]:
        return tasks.bundle_policy(**access(), actor=request()["actor"], params=dict(params))

    set_policy()


bundle_policy()
