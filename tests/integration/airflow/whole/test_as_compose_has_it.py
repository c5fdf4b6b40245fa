"""Airflow as docker-compose.yml sets it up: its password, its health checks, and what `cleave doctor` sees of it."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import requests

from controller.devstack.airflow import AirflowStandalone
from controller.entrypoints.commands.doctor import SCHEDULED_DAGS
from tests.integration.airflow.whole.conftest import COMPOSE, PASSWORD, log_in
from tests.support.command_line import CommandLine
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(400)]


def test_the_password_of_the_environment_lets_in_and_no_other(airflow: AirflowStandalone) -> None:
    assert log_in(airflow.url, PASSWORD).status_code == 201
    assert log_in(airflow.url, "admin").status_code == 401
    assert requests.get(f"{airflow.url}/api/v2/dags", timeout=30).status_code == 401


def test_the_health_checks_find_it_healthy(airflow: AirflowStandalone, health_port: int) -> None:
    assert requests.get(f"http://127.0.0.1:{health_port}/health", timeout=30).status_code == 200
    assert requests.get(f"{airflow.url}/api/v2/monitor/health", timeout=30).status_code == 200
    for service in ("airflow-dag-processor", "airflow-triggerer"):
        check = partial(passes, airflow, COMPOSE["services"][service]["healthcheck"]["test"][1:])
        wait_until(check, message=f"{service} is alive")


def passes(airflow: AirflowStandalone, test: list[str]) -> bool:
    """Whether the command of a health check ends well."""
    program, *arguments = test
    command = [str(Path(sys.executable).with_name(program)), *arguments]
    done = subprocess.run(command, env=airflow.environment(), capture_output=True, check=False)
    return done.returncode == 0


def test_doctor_sees_health_dags_and_connection(
    airflow: AirflowStandalone,
    database: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLEAVE_DATABASE_URL", database)
    monkeypatch.setenv("CLEAVE_AIRFLOW_URL", airflow.url)
    monkeypatch.setenv("CLEAVE_AIRFLOW_TOKEN", log_in(airflow.url, PASSWORD).json()["access_token"])
    for dag in SCHEDULED_DAGS:
        airflow.api.wait_dag(dag)
        airflow.api.call("PATCH", f"/dags/{dag}", {"is_paused": False})
    cleave = CommandLine(database, capsys)

    def found() -> dict[str, tuple[str, str]]:
        rows = json.loads(cleave("doctor", "--json").out)
        return {row["check"]: (row["level"], row["finding"]) for row in rows}

    wait_until(lambda: found()["airflow DAGs"][0] == "ok", message="every scheduled DAG is loaded")
    assert found()["airflow"] == ("ok", f"healthy at {airflow.url}")
    assert found()["airflow connection"][0] == "note"
    monkeypatch.setenv("CLEAVE_AIRFLOW_TOKEN", "nobody's")
    assert found()["airflow DAGs"][0] == "wrong"
    assert "CLEAVE_AIRFLOW_TOKEN" in found()["airflow DAGs"][1]
    cleave.store.dispose()
    for dag in SCHEDULED_DAGS:
        airflow.api.call("PATCH", f"/dags/{dag}", {"is_paused": True})
