"""Put a policy for a topic into shadow: it is asked beside the one in force, and never acts.

*Knobs* is a JSON object of what it sets on top of the policy in force: `{"max_segments": 16}`. What it would have done stands in
`inspect.shadow_decisions`; the DAG `policy_promote` weighs it against the policy in force on the topic's own past. A topic has one candidate
in shadow at most.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import Param, dag
from cleave_dags import access, cleave_task, dry_run_param, form, reason_param, request, topic_param

from controller.entrypoints import tasks

KNOBS = Param(
    type="object",
    title="Knobs",
    description="What it sets, as JSON, by name; see the page of policies.",
)


@dag(
    dag_display_name="Cleave: propose a policy",
    **form(
        __doc__,
        topic=topic_param(),
        knobs=KNOBS,
        reason=reason_param("Why; whoever promotes it reads that."),
        dry_run=dry_run_param(),
    ),
)
def policy_propose() -> None:
    @cleave_task(priority=10)
    def propose(params: dict[str, Any]) -> dict[str, Any]:
        return tasks.propose_policy(**access(), **request(), params=dict(params))

    propose()


policy_propose()
