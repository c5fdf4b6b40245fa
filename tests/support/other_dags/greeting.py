"""A DAG of another team, unrelated to Cleave: it greets, or fails on request."""

from __future__ import annotations

from typing import Any

from airflow.sdk import dag, task


@dag(schedule=None, params={"fail": False}, is_paused_upon_creation=False)
def greeting() -> None:
    """Log the address of a connection."""

    @task
    def greet(params: Any = None) -> None:
        from airflow.sdk import BaseHook

        print("reaching", BaseHook.get_connection("elsewhere").host)  # noqa: T201 - into the task's log
        if params["fail"]:
            raise ValueError("as asked")

    greet()


greeting()
