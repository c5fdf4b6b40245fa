"""A whole Airflow for all tests that need one: starting one is half a minute of a core.

Its users, password and health checks are those of docker-compose.yml, set up by the script that is there for it.
"""

from __future__ import annotations

import json
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml
from sqlalchemy import make_url

from controller.devstack.airflow import AirflowStandalone
from controller.devstack.airflow_api import AirflowApi
from controller.devstack.ports import free_port, release_port
from controller.devstack.postgres import PostgresServer
from tests.support.airflow_home import HAS_PARTITIONS, PROJECT
from tests.support.processes import family, still_running

USERS_DAGS = "tests/support/users_dags" if HAS_PARTITIONS else "tests/support/users_dags_before_3_2"
COMPOSE: dict[str, Any] = yaml.safe_load((PROJECT / "docker-compose.yml").read_text())
PASSWORD = 'quo"ted'


class PasswordApi(AirflowApi):
    """Gets its token as people do."""

    def token(self) -> str:
        """A bearer token, kept for later calls."""
        if self._token is None:
            answer = log_in(self.url, PASSWORD)
            answer.raise_for_status()
            self._token = str(answer.json()["access_token"])
        return self._token


def log_in(url: str, password: str) -> requests.Response:
    """What Airflow answers to the user admin."""
    return requests.post(f"{url}/auth/token", json={"username": "admin", "password": password}, timeout=30)


@pytest.fixture(scope="package")
def cleave_url(postgres_server: PostgresServer, migrated_template: str) -> Iterator[str]:
    """The database that the shared Airflow's DAGs act on: a running Airflow does not change its connection."""
    name = f"cleave_airflow_{secrets.token_hex(4)}"
    yield postgres_server.create_database(name, template=migrated_template)
    postgres_server.drop_database(name)


@pytest.fixture(scope="package")
def landing(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where the shared Airflow's DAGs look for samples."""
    return str(tmp_path_factory.mktemp("landing"))


@pytest.fixture(scope="package")
def health_port() -> Iterator[int]:
    """Where the scheduler answers; in a container it is the one that the check names."""
    port = free_port()
    yield port
    release_port(port)


@pytest.fixture(scope="package")
def airflow(
    postgres_server: PostgresServer,
    cleave_url: str,
    landing: str,
    health_port: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[AirflowStandalone]:
    """Cleave's own DAGs and those of `USERS_DAGS`; whoever stops it starts it again.

    DAGs begin paused unless they say otherwise, so that each test starts what it looks at.
    """
    name = f"airflow_{secrets.token_hex(4)}"
    url = make_url(cleave_url).set(drivername="postgres")
    directory = tmp_path_factory.mktemp("airflow")
    airflow = AirflowStandalone(
        directory,
        dags_folder=PROJECT / "dags",
        plugins_folder=PROJECT / "plugins",
        metadata_url=postgres_server.create_database(name),
        connections={
            "cleave": url.render_as_string(hide_password=False),
            "elsewhere": "postgres://somebody@the-database/thing",
        },
        env={
            **_as_compose_has_it(directory, health_port),
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "True",
            "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(
                [_bundle("dags"), _bundle(USERS_DAGS)]
            ),
            "CLEAVE_AGGREGATION_SECONDS": "5",
            "CLEAVE_LANDING_URL": landing,
            "CLEAVE_MERGE_PASS_SECONDS": "5",
            "CLEAVE_SPLIT_PASS_SECONDS": "3600",
            "PYTHONPATH": str(PROJECT),
            "SPARK_MASTER": "none",
        },
    )
    airflow.api = PasswordApi(airflow.url)
    _initialise(airflow, directory)
    with airflow:
        yield airflow
        everybody = family(airflow)
    assert still_running(everybody) == []
    postgres_server.drop_database(name)


def _as_compose_has_it(directory: Path, health_port: int) -> dict[str, str]:
    told = COMPOSE["services"]["airflow-scheduler"]["environment"]
    taken = ("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS", "AIRFLOW__SCHEDULER__ENABLE_HEALTH_CHECK")
    return {name: told[name] for name in taken} | {
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(directory / "passwords.json"),
        "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_SERVER_PORT": str(health_port),
        "AIRFLOW_ADMIN_PASSWORD": PASSWORD,
    }


def _initialise(airflow: AirflowStandalone, directory: Path) -> None:
    (directory / "home").mkdir(mode=0o700)
    subprocess.run(
        [PROJECT / "docker" / "airflow-init.sh"],
        env=airflow.environment(),
        check=True,
        capture_output=True,
    )
    assert (directory / "passwords.json").stat().st_mode & 0o077 == 0


def _bundle(folder: str) -> dict[str, object]:
    """A folder of the project as Airflow's configuration has it."""
    kind = "airflow.dag_processing.bundles.local.LocalDagBundle"
    return {"name": folder.replace("/", "-"), "classpath": kind, "kwargs": {"path": str(PROJECT / folder)}}
