"""A whole Airflow, started for real: runs tasks, reports failures, serves loopback only, goes without a trace."""

from __future__ import annotations

import contextlib
import os
import signal

import psutil
import pytest

from controller.devstack.airflow import AirflowStandalone
from controller.devstack.failure import DevstackFailed
from tests.support.processes import family, still_running
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(400)]


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
    addresses = set()
    for process in family(airflow):
        with contextlib.suppress(psutil.NoSuchProcess):  # a task that has ended
            addresses |= {
                connection.laddr.ip
                for connection in process.net_connections(kind="inet")
                if connection.status == psutil.CONN_LISTEN
            }

    assert addresses == {"127.0.0.1"}


def test_a_killed_component_comes_back(airflow: AirflowStandalone) -> None:
    assert airflow.revive() == []
    os.kill(airflow.pids["scheduler"], signal.SIGKILL)
    wait_until(lambda: airflow.revive() == ["scheduler"], message="the scheduler is found dead")
    assert airflow.revive() == []

    airflow.api.wait_dag("greeting")
    assert airflow.api.wait_run("greeting", airflow.api.trigger("greeting")) == "success"


@pytest.mark.chaos  # a second start; that nobody is left behind is looked at whenever the shared one ends
def test_it_starts_again_after_a_stop(airflow: AirflowStandalone) -> None:
    everybody = family(airflow)

    airflow.stop()

    assert still_running(everybody) == []
    airflow.start()
    assert airflow.api.is_healthy()
