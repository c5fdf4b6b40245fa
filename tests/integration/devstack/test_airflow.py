"""A whole Airflow as the demo has it, where everybody on loopback is an admin: it may be stopped and started again."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from controller.devstack.airflow import AirflowStandalone
from controller.devstack.postgres import PostgresServer
from tests.support.airflow_home import PROJECT
from tests.support.processes import family, still_running

pytestmark = [pytest.mark.airflow, pytest.mark.chaos, pytest.mark.timeout(900)]


def test_it_starts_again_after_a_stop_and_knows_its_dags(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    name = f"airflow_{secrets.token_hex(4)}"
    airflow = AirflowStandalone(
        tmp_path,
        dags_folder=PROJECT / "tests" / "support" / "users_dags",
        metadata_url=postgres_server.create_database(name),
        connections={"elsewhere": "postgres://somebody@the-database/thing"},
    )
    with airflow:
        airflow.api.wait_dag("greeting")
        everybody = family(airflow)

        airflow.stop()

        assert still_running(everybody) == []
        airflow.start()
        assert airflow.api.wait_run("greeting", airflow.api.trigger("greeting")) == "success"
    postgres_server.drop_database(name)
