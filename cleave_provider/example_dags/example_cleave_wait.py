"""Go on when an operation has ended that somebody else asked for.

`cleave segments split --no-wait` and `POST /api/v1/topics/.../split` answer with an operation's id.
Two tasks wait for it, each in one of the two ways: take one. `wait` is rescheduled between two looks, for `deferred` the
triggerer looks. Their answers are the same.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import Param, dag, task

from cleave_provider.sensors.cleave import WaitForOperationSensor


@dag(
    schedule=None,
    params={"operation_id": Param(type="integer", minimum=1)},
    doc_md=__doc__,
    tags=["cleave", "example"],
)
def example_cleave_wait() -> None:
    asked_for = "{{ params.operation_id }}"
    wait = WaitForOperationSensor(task_id="wait", operation_id=asked_for, poke_interval=2, timeout=600)
    deferred = WaitForOperationSensor(
        task_id="deferred", operation_id=asked_for, poke_interval=2, timeout=600, deferrable=True
    )

    @task
    def tell(operation: Any) -> str:
        return f"{operation['kind']} of {operation['topic']} made segments {operation['children']}"

    deferred >> tell(wait.output)


example_cleave_wait()
