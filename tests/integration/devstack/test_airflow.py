"""A whole Airflow, started for real: runs tasks, reports failures, serves loopback only, goes without a trace."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import psutil
import pytest

from controller.devstack.airflow import AirflowStandalone
from controller.devstack.postgres import PostgresServer
from controller.devstack.process import DevstackFailed

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(400)]

DAG = """
from airflow.sdk import dag, task


@dag(schedule=None, params={"fail": False})
def greeting():
    @task
    def greet(params: dict):
        from airflow.sdk import BaseHook

        print("reaching", BaseHook.get_connection("cleave").host)
        if params["fail"]:
            raise ValueError("as asked")

    greet()


greeting()
"""


@pytest.fixture(scope="module")
def airflow(
    postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AirflowStandalone]:
    directory = tmp_path_factory.mktemp("airflow")
    (directory / "dags").mkdir()
    (directory / "dags" / "greeting.py").write_text(DAG)
    name = f"airflow_{secrets.token_hex(4)}"
    airflow = AirflowStandalone(
        directory / "airflow",
        dags_folder=directory / "dags",
        metadata_url=postgres_server.create_database(name),
        connections={"cleave": "postgres://cleave@the-database/cleave"},
    )
    with airflow:
        yield airflow
    postgres_server.drop_database(name)


def family(airflow: AirflowStandalone) -> list[psutil.Process]:
    heads = [psutil.Process(pid) for pid in airflow.pids.values()]
    return heads + [child for head in heads for child in head.children(recursive=True)]


def test_a_run_ends_in_success_and_its_log_can_be_read(airflow: AirflowStandalone) -> None:
    airflow.api.wait_dag("greeting")
    run = airflow.api.trigger("greeting", dag_run_id="the-first")

    assert run == "the-first"
    assert airflow.api.wait_run("greeting", run) == "success"
    assert "reaching the-database" in airflow.api.task_log("greeting", run, "greet")


def test_a_failing_run_is_reported_as_failed(airflow: AirflowStandalone) -> None:
    airflow.api.wait_dag("greeting")
    run = airflow.api.trigger("greeting", conf={"fail": True})

    assert airflow.api.wait_run("greeting", run) == "failed"


def test_what_airflow_refuses_is_an_error_with_its_words(airflow: AirflowStandalone) -> None:
    with pytest.raises(DevstackFailed, match="404 to POST /dags/nobody/dagRuns"):
        airflow.api.trigger("nobody")
    with pytest.raises(DevstackFailed, match="nobody did not appear"):
        airflow.api.wait_dag("nobody", timeout_seconds=0.1)


def test_every_listening_socket_is_on_loopback(airflow: AirflowStandalone) -> None:
    addresses = {
        connection.laddr.ip
        for process in family(airflow)
        for connection in process.net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
    }

    assert addresses == {"127.0.0.1"}


def test_a_killed_component_comes_back_and_a_stop_leaves_no_process(airflow: AirflowStandalone) -> None:
    airflow.kill("scheduler")
    airflow.restart("scheduler")
    airflow.api.wait_dag("greeting")
    assert airflow.api.wait_run("greeting", airflow.api.trigger("greeting")) == "success"
    everybody = family(airflow)

    airflow.stop()

    left = [
        process for process in everybody if process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    ]
    assert left == []
    airflow.start()
    assert airflow.api.is_healthy()
