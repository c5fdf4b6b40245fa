"""An Airflow for tests that run DAGs in this process: its own home, sqlite, this project's folders.

Airflow reads its configuration once, at its first import, so `prepare` must precede any other import of Airflow; tests import Airflow
inside functions and fixtures only.
"""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from packaging.version import Version

PROJECT = Path(__file__).parents[2]
AIRFLOW = version("apache-airflow")
HAS_PARTITIONS = Version(AIRFLOW) >= Version("3.2")
"""Whether an asset event may have a key, and a run be for one of them."""
KEEPS_STATE_OF_ASSETS = Version(AIRFLOW) >= Version("3.3")
"""Whether a watcher can write down how far it got."""
TELLS_WHO_ASKED = Version(AIRFLOW) >= Version("3.1.2")
"""Whether a task learns who triggered its run."""
RETRIES_THE_KILLED = Version(AIRFLOW) >= Version("3.1.2")
"""Whether a task whose process was killed is tried again; before, it fails."""
SHOWS_NO_FRAMES = Version(AIRFLOW) >= Version("3.3")
"""Whether a task can fail for good without Airflow logging the frames of its own task runner."""
KEEPS_ITS_COOKIE = Version(AIRFLOW) >= Version("3.2")
"""Whether what a plugin shows in a frame knows who has logged in."""
ASKS_IN_THE_LIST = Version(AIRFLOW) >= Version("3.3")
"""Whether one answers in the list of Required Actions; before, each leads to a page of its own."""
_is_prepared = False


def prepare(home: Path) -> None:
    """Point Airflow to `home` and create its metadata database there; a second call in a process changes nothing. Raises RuntimeError if
    Airflow was imported before.
    """
    global _is_prepared  # noqa: PLW0603  # so is Airflow's configuration: one for a process
    if _is_prepared:
        return
    if "airflow" in sys.modules:
        raise RuntimeError(
            "something imported airflow before its home was prepared; import it inside the test"
        )
    os.environ |= {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__API_AUTH__JWT_SECRET": "signs nothing but the tokens of tests, " * 2,
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


def read_dags(path: Path | str | None = None) -> Any:
    """Return a `DagBag` of one file, or of every DAG of the project, whose DAGs can be run with their `test`."""
    try:
        from airflow.dag_processing.dagbag import DagBag
    except ImportError:
        return _read_dags_before_3_2(path)
    return DagBag(path, bundle_name="dags-folder")


def _read_dags_before_3_2(path: Path | str | None) -> Any:
    """Return the `DagBag`, and write its DAGs to the metadata database, which a DAG's `test` requires before Airflow 3.2."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.models import dagbag

    bag: Any = dagbag.DagBag(path)  # type: ignore[attr-defined]
    DagBundlesManager().sync_bundles_to_db()
    dagbag.sync_bag_to_db(bag, "dags-folder", None)  # type: ignore[attr-defined]
    return bag


def serialised_and_back(dag: Any) -> Any:
    """Return the DAG as the scheduler gets it, serialized and read again."""
    try:
        from airflow.serialization.serialized_objects import DagSerialization as Serialisation
    except ImportError:  # before 3.2
        from airflow.serialization.serialized_objects import SerializedDAG as Serialisation
    return Serialisation.from_dict(Serialisation.to_dict(dag))
