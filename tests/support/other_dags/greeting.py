"""A DAG of somebody's, which has nothing to do with Cleave: it greets, or fails as asked."""

from __future__ import annotations

from typing import Any

from airflow.sdk import dag, task


@dag(schedule=None, params={"fail": False}, is_paused_upon_creation=False)
def greeting() -> None:
    """Say what a connection leads to."""

    @task
    def greet(params: Any = None) -> None:
        from airflow.sdk import BaseHook

        print("reaching", BaseHook.get_connection("elsewhere").host)  # noqa: T201 - into the task's log
        if params["fail"]:
            raise ValueError("as asked")

    greet()


greeting()
