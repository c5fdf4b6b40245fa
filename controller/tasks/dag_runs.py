"""The run of a DAG that asked for something: read from the key of its request, and told what came of it."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass

from controller import telemetry
from controller.bootstrap import build_airflow_rest
from controller.domain.errors import Retryable
from controller.domain.shown import in_markdown
from controller.settings import Settings


@dataclass(frozen=True, slots=True)
class DagRun:
    """As Airflow names it."""

    dag_id: str
    run_id: str
    task_id: str | None = None
    """None where only the run is known: a pass writes its run into the ledger, and no task."""


def dag_run(request_key: str | None) -> DagRun | None:
    """From `airflow/<dag>/<run>/<task>/<map index>`; None for what was not asked for by a run."""
    parts = (request_key or "").split("/")
    if len(parts) < 5 or parts[0] != "airflow":
        return None
    return DagRun(parts[1], "/".join(parts[2:-2]), parts[-2])


def deciding_run(decided_by: str) -> DagRun | None:
    """From `airflow <dag> <run>`, the name under which a pass decides; None for a worker and for people."""
    parts = decided_by.split(" ", 2)
    return DagRun(parts[1], parts[2]) if len(parts) == 3 and parts[0] == "airflow" else None


def asking_run(asked_in: str | None) -> DagRun | None:
    """From `<dag>/<run>`, the name under which a run asks people; None where none does."""
    dag_id, _, run_id = (asked_in or "").partition("/")
    return DagRun(dag_id, run_id) if run_id else None


def note(settings: Settings, asked_by: str, sentence: str) -> None:
    """Write the sentence into the note of the run with that request key, or that decides under that name, where the settings say
    how to reach Airflow. Nothing fails because it could not.
    """
    run, airflow = dag_run(asked_by) or deciding_run(asked_by), build_airflow_rest(settings)
    if run is None or airflow is None:
        return
    with closing(airflow):
        try:
            airflow.note(run.dag_id, run.run_id, in_markdown(sentence))
        except Retryable as error:
            telemetry.get_logger(__name__).warning("no note on the run", run=run.run_id, why=str(error))
