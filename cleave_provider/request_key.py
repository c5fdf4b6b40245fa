"""The actor and the request key of a task's request, as stored in the journal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def request_of(context: Mapping[str, Any]) -> dict[str, str]:
    """Return the actor, and a request key that all attempts of the task share, so that a retry gets the
    operation of the first attempt.
    """
    run, instance = context["dag_run"], context["ti"]
    return {
        "request_key": f"airflow/{run.dag_id}/{run.run_id}/{instance.task_id}/{instance.map_index}",
        # Before Airflow 3.1.2, a task does not know the user who triggered its run.
        "actor": getattr(run, "triggering_user_name", None) or f"airflow {run.dag_id}",
    }
