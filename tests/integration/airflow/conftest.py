"""The DAGs as Airflow sees them, and a Cleave for them to act on as a login with the controller's rights."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import make_url

from tests.support.airflow_home import prepare, read_dags
from tests.support.bench import Bench

RunDag = Callable[..., Any]


def error_of_the_api_server() -> Exception:
    """What a task gets of Airflow if the API server answers its call with an error."""
    from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
    from airflow.sdk.execution_time.comms import ErrorResponse

    return AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail={"status_code": 502}))


class FailingApiServer:
    """Answers each lookup of a connection with an error, until `works`; then with the word that there is none."""

    def __init__(self) -> None:
        self.raises = False
        self.works = False
        self.lookups = 0

    def send(self, message: Any, **_: Any) -> Any:
        """What the process that watches over a task or a trigger answers."""
        from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
        from airflow.sdk.execution_time.comms import ErrorResponse, GetConnection

        if not isinstance(message, GetConnection):
            return None
        self.lookups += 1
        error = ErrorResponse(
            error=ErrorType.CONNECTION_NOT_FOUND if self.works else ErrorType.API_SERVER_ERROR,
            detail={"status_code": 404 if self.works else 502},
        )
        if self.raises:
            raise AirflowRuntimeError(error)
        return error


@pytest.fixture(scope="session")
def airflow_home(tmp_path_factory: pytest.TempPathFactory) -> None:
    """This process's Airflow."""
    prepare(tmp_path_factory.mktemp("airflow-home"))


@pytest.fixture(scope="session")
def dag_bag(airflow_home: None) -> Any:
    """Every DAG of the project, imported once."""
    return read_dags()


@pytest.fixture
def controller_url(bench: Bench) -> Iterator[str]:
    """URL of the bench's database for a login that is in role cleave_controller and nothing more."""
    login = f"airflow_{secrets.token_hex(4)}"
    bench.execute(f"CREATE ROLE {login} LOGIN PASSWORD 'p@ss/word' IN ROLE cleave_controller")
    url = make_url(bench.url).set(drivername="postgres", username=login, password="p@ss/word")
    yield url.render_as_string(hide_password=False)
    bench.execute(f"DROP ROLE {login}")


@pytest.fixture
def loader(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Connection `cleave_loader`: a login that is in role cleave_spark_loader and nothing more."""
    login = f"loader_{secrets.token_hex(4)}"
    bench.execute(f"CREATE ROLE {login} LOGIN PASSWORD 'pw' IN ROLE cleave_spark_loader")
    url = make_url(bench.url).set(drivername="postgres", username=login, password="pw")
    monkeypatch.setenv("AIRFLOW_CONN_CLEAVE_LOADER", url.render_as_string(hide_password=False))
    yield login
    bench.execute(f"DROP ROLE {login}")


@pytest.fixture
def failing_api_server(airflow_home: None, monkeypatch: pytest.MonkeyPatch) -> FailingApiServer:
    """Airflow's API server as this process's tasks and triggers see it."""
    from airflow.sdk.execution_time import task_runner

    server = FailingApiServer()
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", server, raising=False)
    monkeypatch.delenv("AIRFLOW_CONN_CLEAVE", raising=False)
    return server


@pytest.fixture
def run_dag(dag_bag: Any, controller_url: str, monkeypatch: pytest.MonkeyPatch) -> RunDag:
    """Runs a DAG in this process, on the bench's database; gives back its DAG run."""
    monkeypatch.setenv("AIRFLOW_CONN_CLEAVE", controller_url)

    def run(dag_id: str, **conf: Any) -> Any:
        # Read anew each time: Airflow writes a run's parameters into the DAG's own, which a task process has alone.
        fresh = read_dags(dag_bag.dags[dag_id].fileloc).dags[dag_id]
        return fresh.test(run_conf=conf)

    return run
