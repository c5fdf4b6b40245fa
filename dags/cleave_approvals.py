"""Present approvals to a person under Airflow's *Required Actions*, and record the answers.

A split or merge pass starts this DAG (asset `cleave_waiting_acts`). Each approval is a question of its own
until it expires; then its default applies. The same approvals are on Cleave's pages and in `cleave approvals
list`. The first answer counts, here or there. An approved operation begins with the next pass.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import dag, task_group
from cleave_dags import POOL, TAGS, WAITING_ACTS, access, asking_run, cleave_task

from cleave_provider.operators.ask import AskOperator, given_by
from controller import tasks


@dag(
    dag_display_name="Cleave: approvals that wait for a person",
    schedule=[WAITING_ACTS],
    catchup=False,
    # A run lasts until the last of its questions is answered in Airflow or expires, by default a day, and each pass of
    # this day may start one. A waiting question has no process.
    max_active_runs=1000,
    max_active_tasks=100,
    tags=[*TAGS, "scheduled"],
    doc_md=__doc__,
)
def cleave_approvals() -> None:
    @cleave_task(priority=5)
    def questions() -> list[dict[str, Any]]:
        return tasks.approval_questions(**access(), run=asking_run())

    @task_group
    def act(question: Any) -> None:
        @cleave_task(priority=5)
        def write_down(question: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
            return tasks.answer_question(**access(), question=question, answer=given_by(answer))

        answered_question = AskOperator(task_id="ask", question=question, pool=POOL)
        write_down(question, answered_question.output)

    act.expand(question=questions())


cleave_approvals()
