"""Airflow as docker-compose.yml sets it up: its password, its health checks, and what `cleave doctor` sees of it."""

from __future__ import annotations

import json
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from controller.devstack.airflow import AirflowStandalone
from controller.devstack.ports import free_port, release_port
from controller.devstack.postgres import PostgresServer
from controller.domain.errors import Retryable
from controller.services.asset_events import AirflowLogin, AirflowRest
from controller.settings import PROJECT_ROOT
from tests.support.command_line import CommandLine
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(400)]
COMPOSE: dict[str, Any] = yaml.safe_load((PROJECT_ROOT / "docker-compose.yml").read_text())
PASSWORD, WORKERS_PASSWORD = 'quo"ted', "another"


@pytest.fixture(scope="module")
def health_port() -> Iterator[int]:
    """Where the scheduler answers; in a container it is the one that the check names."""
    port = free_port()
    yield port
    release_port(port)


@pytest.fixture(scope="module")
def airflow(
    postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory, health_port: int
) -> Iterator[AirflowStandalone]:
    directory = tmp_path_factory.mktemp("airflow")
    name = f"airflow_{secrets.token_hex(4)}"
    told = COMPOSE["services"]["airflow-scheduler"]["environment"]
    users = "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS"
    airflow = AirflowStandalone(
        directory / "airflow",
        dags_folder=PROJECT_ROOT / "dags",
        plugins_folder=PROJECT_ROOT / "plugins",
        metadata_url=postgres_server.create_database(name),
        env={
            users: told[users],
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(directory / "passwords.json"),
            "AIRFLOW__SCHEDULER__ENABLE_HEALTH_CHECK": told["AIRFLOW__SCHEDULER__ENABLE_HEALTH_CHECK"],
            "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_SERVER_PORT": str(health_port),
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "3600",  # no file changes here
            "AIRFLOW_ADMIN_PASSWORD": PASSWORD,
            "CLEAVE_AIRFLOW_PASSWORD": WORKERS_PASSWORD,
        },
    )
    (directory / "airflow" / "home").mkdir(parents=True)
    subprocess.run(
        [PROJECT_ROOT / "docker" / "airflow-init.sh"],
        env=airflow.environment() | {"PYTHONDONTWRITEBYTECODE": "1"},
        check=True,
        capture_output=True,
    )
    assert (directory / "passwords.json").stat().st_mode & 0o077 == 0
    with airflow:
        yield airflow
    postgres_server.drop_database(name)


def ask_token(airflow: AirflowStandalone, password: str) -> requests.Response:
    return requests.post(
        f"{airflow.url}/auth/token", json={"username": "admin", "password": password}, timeout=30
    )


def test_the_worker_posts_events_as_its_own_user(airflow: AirflowStandalone) -> None:
    login = AirflowLogin(airflow.url, username="cleave", password=WORKERS_PASSWORD)

    def posted() -> bool:
        # Each time a new one: who found no such asset waits for a while. An Airflow that has just started answers late.
        with closing(AirflowRest(login)) as assets, suppress(Retryable):
            return assets.post("topic://acme/shop/orders", {"kind": "split"})
        return False

    wait_until(posted, timeout_seconds=120, message="the asset is known and takes the event")


def test_the_password_of_the_environment_lets_in_and_no_other(airflow: AirflowStandalone) -> None:
    assert ask_token(airflow, PASSWORD).status_code == 201
    assert ask_token(airflow, "admin").status_code == 401
    assert requests.get(f"{airflow.url}/api/v2/dags", timeout=30).status_code == 401


def test_the_health_checks_find_it_healthy(airflow: AirflowStandalone, health_port: int) -> None:
    assert requests.get(f"http://127.0.0.1:{health_port}/health", timeout=30).status_code == 200
    assert requests.get(f"{airflow.url}/api/v2/monitor/health", timeout=30).status_code == 200
    for service in ("airflow-dag-processor", "airflow-triggerer"):
        check = partial(passes, airflow, COMPOSE["services"][service]["healthcheck"]["test"][1:])
        wait_until(check, message=f"{service} is alive")


def passes(airflow: AirflowStandalone, test: list[str]) -> bool:
    """Return True if the script of a health check ends well; in a container it asks the API server by the name of its service."""
    program, *arguments = test
    script = (PROJECT_ROOT / program).read_text().replace("http://airflow-apiserver:8080", airflow.url)
    done = subprocess.run(["sh", "-c", script, program, *arguments], capture_output=True, check=False)
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
    monkeypatch.setenv("CLEAVE_AIRFLOW_TOKEN", ask_token(airflow, PASSWORD).json()["access_token"])
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
