"""The processes of a server of several components, and the check that none outlives it."""

from __future__ import annotations

from collections.abc import Iterable

import psutil

from controller.devstack.airflow import AirflowStandalone


def family(airflow: AirflowStandalone) -> list[psutil.Process]:
    """Return its components and all their present descendants."""
    heads = [psutil.Process(pid) for pid in airflow.pids.values()]
    return heads + [child for head in heads for child in head.children(recursive=True)]


def still_running(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Return the processes that have not ended; a zombie has ended."""
    return [
        process for process in processes if process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    ]
