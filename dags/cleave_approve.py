"""Answer acts that wait for a person, several alike: what Cleave's pages run when somebody clicks there.

What waits is on the pages, in `inspect.approvals` and in `cleave approvals list`. What is approved goes with the next pass. *Dry run*
says what would be answered.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import Param, dag
from cleave_dags import access, cleave_task, dry_run_param, form, reason_param, request

from controller.entrypoints import tasks

APPROVALS = Param(
    type="array",
    items={"type": "integer"},
    title="Approvals",
    description="One a line: ids of inspect.approvals.",
)
ANSWER = Param(type="string", enum=["approve", "reject"], title="Answer", description="The same for all.")


@dag(
    dag_display_name="Cleave: answer acts that wait",
    **form(__doc__, approvals=APPROVALS, answer=ANSWER, reason=reason_param("Why."), dry_run=dry_run_param()),
)
def cleave_approve() -> None:
    @cleave_task(priority=10)
    def answer(params: dict[str, Any]) -> list[dict[str, Any]]:
        return tasks.answer_approvals(**access(), actor=request()["actor"], params=dict(params))

    answer()


cleave_approve()
