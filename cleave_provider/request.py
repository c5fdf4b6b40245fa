"""Who asks, as the journal has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def request_of(context: Mapping[str, Any]) -> dict[str, str]:
    """Who asks, and a key that every attempt of this task shares: a retry gets the first one's operation."""
    run, instance = context["dag_run"], context["ti"]
    return {
        "request_key": f"airflow/{run.dag_id}/{run.run_id}/{instance.task_id}/{instance.map_index}",
        # Before Airflow 3.1.2 a task does not learn who asked.
        "actor": getattr(run, "triggering_user_name", None) or f"airflow {run.dag_id}",
    }
