"""People's own DAGs, run in this process on the bench's database."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.airflow_home import PROJECT, read_dags

EXAMPLES = PROJECT / "cleave_provider" / "example_dags"
RunExample = Callable[..., Any]
RunOperator = Callable[[str], Any]
RunMapped = Callable[[str], list[Any]]
PEOPLES_OWN = """
from airflow.sdk import DAG
from cleave_provider.operators.cleave import *
from cleave_provider.sensors.cleave import *

with DAG("peoples_own", schedule=None):
    {}
"""


@pytest.fixture
def connection(airflow_home: None, controller_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Connection `cleave`, of the provider's own type; its URI."""
    uri = controller_url.replace("postgres://", "cleave://", 1)
    monkeypatch.setenv("AIRFLOW_CONN_CLEAVE", uri)
    return uri


@pytest.fixture
def run_file(connection: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs the DAG of a file, whose folder is Airflow's for so long; gives back its DAG run."""

    def run(path: Path, dag_id: str, **conf: Any) -> Any:
        kind = "airflow.dag_processing.bundles.local.LocalDagBundle"
        bundle = {"name": "dags-folder", "classpath": kind, "kwargs": {"path": str(path.parent)}}
        monkeypatch.setenv("AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST", json.dumps([bundle]))
        found = read_dags(path)
        assert found.import_errors == {}
        return found.dags[dag_id].test(run_conf=conf)

    return run


@pytest.fixture
def run_example(run_file: Callable[..., Any]) -> RunExample:
    """Runs an example with a filled-in form; gives back its DAG run."""
    return lambda dag_id, **conf: run_file(EXAMPLES / f"{dag_id}.py", dag_id, **conf)


@pytest.fixture
def run_mapped(run_file: Callable[..., Any], tmp_path: Path) -> RunMapped:
    """Runs what the text makes, as the one task of a DAG; gives back its task instances in their order."""

    numbers = itertools.count()

    def run(made: str) -> list[Any]:
        # A folder each: of two texts of one length, written in one second, Python would run the first one's bytecode twice.
        path = tmp_path / f"dags_{next(numbers)}" / "peoples_own.py"
        path.parent.mkdir()
        path.write_text(PEOPLES_OWN.format(made))
        instances = run_file(path, "peoples_own").get_task_instances()
        return sorted(instances, key=lambda one: int(one.map_index))

    return run


@pytest.fixture
def run_operator(run_mapped: RunMapped) -> RunOperator:
    """Runs the operator that the text makes, as the one task of a DAG; gives back the task instance."""

    def run(made: str) -> Any:
        [instance] = run_mapped(made)
        return instance

    return run


@pytest.fixture(autouse=True)
def events_follow_each_other_at_once(airflow_home: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody here makes runs of them."""
    from cleave_provider.triggers import cleave

    monkeypatch.setattr(cleave, "APART_SECONDS", 0.0)
