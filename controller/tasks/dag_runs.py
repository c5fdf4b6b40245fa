"""The DAG run that made a request: parses the run from the request key, and adds a note with the result to
the run.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass

from controller import telemetry
from controller.bootstrap import build_airflow_rest
from controller.domain.errors import InvalidInput, Retryable
from controller.domain.formatting import in_markdown
from controller.settings import Settings


@dataclass(frozen=True, slots=True)
class DagRun:
    """Identifiers of a DAG run in Airflow."""

    dag_id: str
    run_id: str
    task_id: str | None = None
    """Id of the task; None if only the run is known, because a pass records its run in the decision log, and
    no task.
    """


def dag_run(request_key: str | None) -> DagRun | None:
    """Return the run of a request key `airflow/<dag>/<run>/<task>/<map index>`; None if the request did not
    come from a run.
    """
    parts = (request_key or "").split("/")
    if len(parts) < 5 or parts[0] != "airflow":
        return None
    return DagRun(parts[1], "/".join(parts[2:-2]), parts[-2])


def deciding_run(decided_by: str) -> DagRun | None:
    """Return the run of `airflow <dag> <run>`, the actor of a pass's decisions; None for a worker or a
    person.
    """
    parts = decided_by.split(" ", 2)
    return DagRun(parts[1], parts[2]) if len(parts) == 3 and parts[0] == "airflow" else None


def presenting_run(run: str | None) -> DagRun | None:
    """Return the run of `<dag>/<run>`, which presents approvals; None if no run presents them."""
    dag_id, _, run_id = (run or "").partition("/")
    return DagRun(dag_id, run_id) if run_id else None


def note(settings: Settings, requester: str, sentence: str) -> None:
    """Add the sentence to the note of the run in Airflow that `requester`, a request key or an actor name,
    stands for. Does nothing if there is no such run or the settings have no address of Airflow. An
    unavailable Airflow, an error of its answer, or a malformed token of Airflow in the settings is only
    logged, because the work is done.
    """
    run = dag_run(requester) or deciding_run(requester)
    if run is None:
        return
    try:
        airflow = build_airflow_rest(settings)
        if airflow is not None:
            with closing(airflow):
                airflow.note(run.dag_id, run.run_id, in_markdown(sentence))
    except (Retryable, InvalidInput) as error:
        telemetry.get_logger(__name__).warning("note of the run not written", run=run.run_id, why=str(error))
