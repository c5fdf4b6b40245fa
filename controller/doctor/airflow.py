"""Checks of Airflow: its health, the DAGs and the connection of Cleave. Each check returns its result as a
sentence, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any, TypeVar

from controller.bootstrap import Application, airflow_login
from controller.doctor.findings import Note
from controller.domain.errors import Terminal

Content = TypeVar("Content")
ANSWER_SECONDS = 4.0
"""Time for an answer; short enough for the check to report which server does not answer."""
SCHEDULED_DAGS = ("cleave_load_aggregation", "cleave_split_pass", "cleave_merge_pass", "cleave_maintenance")


def health(cleave: Application) -> str:
    """Check that every component of Airflow that reports a state is healthy, without a login. Raises Note if
    Airflow's address is not set, Terminal for components that are not healthy, Retryable if Airflow does not
    answer or answers with an error.
    """
    states = _read(
        cleave,
        "/monitor/health",
        lambda parts: {name: part["status"] for name, part in dict(parts).items() if part},
        needs_login=False,
    )
    unhealthy = [name for name, state in states.items() if state not in (None, "healthy")]
    if unhealthy:
        raise Terminal(
            f"{', '.join(unhealthy)} at {cleave.settings.airflow_url} not healthy; look at its log"
        )
    return f"healthy at {cleave.settings.airflow_url}"


def dags(cleave: Application) -> str:
    """Check that the scheduled DAGs are loaded and not paused. Raises Terminal if a DAG is missing, Note if a
    DAG is paused or if the address or the login of Airflow is not set, Retryable if Airflow does not answer
    or refuses the login.
    """
    paused_by_dag = _read(
        cleave,
        "/dags?tags=cleave&limit=100",
        lambda listing: {dag["dag_id"]: dag["is_paused"] for dag in listing["dags"]},
    )
    missing = [name for name in SCHEDULED_DAGS if name not in paused_by_dag]
    if missing:
        raise Terminal(
            f"Airflow has no DAG {', '.join(missing)}; put dags/ and plugins/ of Cleave into its folders and look at "
            "its import errors"
        )
    paused = [name for name in SCHEDULED_DAGS if paused_by_dag[name]]
    if paused:
        raise Note(f"paused: {', '.join(paused)}; unpause with `airflow dags unpause NAME`")
    return f"{len(SCHEDULED_DAGS)} scheduled DAGs are loaded and not paused"


def connection(cleave: Application) -> str:
    """Check that Airflow stores the connection `cleave`. Raises Note if Airflow does not, because the
    connection may be in another secrets backend, or if the address or the login of Airflow is not set;
    Retryable if Airflow does not answer or refuses the login.
    """
    stored_ids = _read(
        cleave,
        # Airflow returns 100 connections at most, by default; the pattern is a part of the name.
        "/connections?connection_id_pattern=cleave&limit=100",
        lambda listing: {stored_connection["connection_id"] for stored_connection in listing["connections"]},
    )
    if "cleave" not in stored_ids:
        raise Note(
            "Airflow stores no connection `cleave`: fine if its tasks have AIRFLOW_CONN_CLEAVE or a secrets backend, "
            "else `airflow connections add cleave --conn-uri postgres://...`"
        )
    return "connection `cleave` is stored"


def _read(
    cleave: Application, path: str, read: Callable[[Any], Content], *, needs_login: bool = True
) -> Content:
    """Return the result of `read` on the document at the path of Airflow's API. Raises Note if the settings
    for the request are missing, Retryable if Airflow does not answer, refuses the login or answers with an
    error, or if `read` raises ValueError, LookupError or TypeError.
    """
    from controller.services.asset_events import AirflowRest

    login = airflow_login(cleave.settings)
    if login is None:
        raise Note("CLEAVE_AIRFLOW_URL is not set: Airflow is not checked")
    if needs_login and not login.is_set:
        raise Note(
            "neither CLEAVE_AIRFLOW_TOKEN nor CLEAVE_AIRFLOW_USERNAME with CLEAVE_AIRFLOW_PASSWORD is set: not checked"
        )
    with closing(AirflowRest(login, answer_seconds=ANSWER_SECONDS)) as rest:
        return rest.read(path, read)
