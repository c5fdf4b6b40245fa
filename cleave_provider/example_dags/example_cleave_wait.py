"""Continue after an operation has ended that another client requested.

`cleave segments split --no-wait` and `POST /api/v1/topics/.../split` return the id of an operation. Two tasks
wait for the operation, each in one of the two ways; use one of them. `wait` is rescheduled between two
checks; for `deferred` the triggerer checks. Their results are the same.
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
    operation_id = "{{ params.operation_id }}"
    wait = WaitForOperationSensor(task_id="wait", operation_id=operation_id, poke_interval=2, timeout=600)
    deferred = WaitForOperationSensor(
        task_id="deferred", operation_id=operation_id, poke_interval=2, timeout=600, deferrable=True
    )

    @task
    def describe_operation(operation: Any) -> str:
        return f"{operation['kind']} of {operation['topic']} made segments {operation['children']}"

    deferred >> describe_operation(wait.output)


example_cleave_wait()
