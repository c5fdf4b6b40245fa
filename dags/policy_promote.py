"""Put a topic's candidate in force, once somebody has seen both figures and approved.

*weigh* asks what the policy in force and the candidate would have cost on the topic's own past; a candidate that would have cost more is
refused there and then, and there is nothing to approve. *approve* waits in Airflow's *Required Actions* with both figures. *promote* sets
the topic's policy, unless the policy in force was changed meanwhile. *Reject* leaves the candidate in shadow; `cleave policy withdraw`
takes it out.
"""

from __future__ import annotations

import inspect
from datetime import timedelta
from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator, HITLOperator
from airflow.sdk import dag
from cleave_dags import (
    POOL,
    access,
    action_params,
    approver,
    cleave_task,
    form,
    request,
)

from cleave_provider.failures import RetryableOnly
from cleave_provider.versions import HAS_RETRY_POLICIES
from controller.entrypoints import tasks

PARAMS = action_params("policy promote")
del PARAMS["dry_run"]  # a dry run leaves no evidence that somebody could approve
RETRIES: dict[str, Any] = {"retry_policy": RetryableOnly()} if HAS_RETRY_POLICIES else {}
PATIENCE = timedelta(days=7)
"""How long the approval waits. After that nothing is promoted."""
HAS_RESPONSE_TIMEOUT = "response_timeout" in inspect.signature(HITLOperator.__init__).parameters
WAITS: dict[str, Any] = {"response_timeout" if HAS_RESPONSE_TIMEOUT else "execution_timeout": PATIENCE}
"""Airflow 3.1 begins with a provider whose approvals have the other name for it."""


@dag(
    dag_display_name="Cleave: promote a policy",
    **{**form(__doc__, **PARAMS), "dagrun_timeout": PATIENCE + timedelta(hours=2)},
)
def policy_promote() -> None:
    @cleave_task(retries=1)
    def weigh(params: dict[str, Any]) -> dict[str, Any]:
        return tasks.weigh_policy(**access(loader=True), **request(), params=dict(params))

    @cleave_task(retries=1)
    def promote(weighed: dict[str, Any]) -> dict[str, Any]:
        return tasks.promote_policy(**access(), actor=approver("approve"), weighed=weighed)

    weighed = weigh()
    approve = ApprovalOperator(
        task_id="approve",
        subject="Promote candidate {{ ti.xcom_pull(task_ids='weigh')['candidate_id'] }} of "
        "{{ ti.xcom_pull(task_ids='weigh')['topic'] }}?",
        body="It sets `{{ ti.xcom_pull(task_ids='weigh')['knobs'] }}`: {{ ti.xcom_pull(task_ids='weigh')['sentence'] }}.\n\n"
        "Proposed because: {{ ti.xcom_pull(task_ids='weigh')['reason'] }}",
        defaults=["Reject"],
        pool=POOL,
        retries=1,
        **WAITS,
        **RETRIES,
    )
    weighed >> approve >> promote(weighed)


policy_promote()
