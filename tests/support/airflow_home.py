"""An Airflow for tests that run DAGs in this process: its own home, sqlite, this project's folders.

Airflow reads its configuration once, at its first import, so `prepare` comes before any other import of it; tests
import Airflow inside functions and fixtures only.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[2]
_is_prepared = False


def prepare(home: Path) -> None:
    """Point Airflow to `home` and make its metadata database there; a second call in a process changes nothing."""
    global _is_prepared  # noqa: PLW0603  # so is Airflow's configuration: one for a process
    if _is_prepared:
        return
    if "airflow" in sys.modules:
        raise RuntimeError(
            "something imported airflow before its home was prepared; import it inside the test"
        )
    os.environ |= {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(PROJECT / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(PROJECT / "plugins"),
        "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home / 'airflow.db'}",
        "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(home / "logs"),
    }
    from airflow.utils.db import initdb

    initdb()
    _is_prepared = True
