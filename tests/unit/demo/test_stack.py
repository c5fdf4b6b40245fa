"""The demo's stack before anything runs: what its processes inherit, and addresses as libpq reads them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from controller.demo import stack
from controller.demo.logins import LOGINS
from controller.demo.planes import NAMESPACE, PLANES, Plane
from controller.demo.stack import CADENCE, MOST_RESTARTS, Stack
from controller.devstack.failure import DevstackFailed
from controller.settings import Settings
from controller.web import access
from tests.support.waiting import wait_until


def test_settings_of_another_cleave_airflow_or_spark_are_not_inherited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("CLEAVE_DATABASE_URL", "AIRFLOW_HOME", "SPARK_MASTER"):
        monkeypatch.setenv(name, "somebody else's")
    monkeypatch.setenv("EDITOR", "ed")

    inherited = stack._inherited()

    assert not [name for name in inherited if name.startswith(("CLEAVE_", "AIRFLOW_", "SPARK_"))]
    assert inherited["EDITOR"] == "ed"


def test_each_login_has_a_role_and_a_password_of_its_own(tmp_path: Path) -> None:
    first, second = Stack(tmp_path, print), Stack(tmp_path, print)

    passwords = [*first._passwords.values(), *second._passwords.values()]
    assert len(set(passwords)) == 2 * len(LOGINS)
    assert len({login.role for login in LOGINS.values()}) == len(LOGINS)


def test_the_demos_cadence_is_made_of_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    of_dags = {"CLEAVE_AGGREGATION_SECONDS", "CLEAVE_MERGE_PASS_SECONDS"}
    names = {f"CLEAVE_{name}".upper() for name in Settings.model_fields}
    for name, value in CADENCE.items():
        monkeypatch.setenv(name, value)

    assert set(CADENCE) - names == of_dags
    assert Settings(_env_file=None).rate_window_seconds == 10.0  # type: ignore[call-arg]


@pytest.mark.parametrize("plane", PLANES.values(), ids=list(PLANES))
def test_an_application_is_told_where_to_ask_and_gets_no_login_to_cleaves_tables(
    tmp_path: Path, plane: Plane
) -> None:
    standing = Stack(tmp_path, print, plane)
    standing.env = {"CLEAVE_DATABASE_URL": "postgresql://cleave_app@h/d"}
    standing.plane_settings = {"CLEAVE_PULSAR_SERVICE_URL": "pulsar://b"} if plane.name == "pulsar" else {}
    standing.client_url = "postgresql://shop@h/d"

    worker = standing._serve_applications()
    told = {name: value for name, value in standing.client_env.items() if name.startswith("CLEAVE_")}

    assert standing.worker_url == f"http://127.0.0.1:{worker['CLEAVE_SERVE_PORT']}"
    granted = access.read(worker["CLEAVE_API_SECRET"], f"Bearer {told.pop('CLEAVE_TOKEN')}")
    assert granted.topics == (f"topic://{NAMESPACE}/*",)
    logs = (
        {"CLEAVE_PULSAR_SERVICE_URL": "pulsar://b"}
        if plane.name == "pulsar"
        else {"CLEAVE_EMBEDDED_URL": "postgresql://shop@h/d"}
    )
    assert told == {"CLEAVE_URL": standing.worker_url, **logs}
    standing._running.close()


def test_what_ends_by_itself_is_started_again_but_not_for_ever(tmp_path: Path) -> None:
    said: list[str] = []
    standing = Stack(tmp_path, said.append)
    standing.spawn("worker", [sys.executable, "-c", "raise SystemExit(7)"], kept=True)
    bystander = standing.spawn("shop", [sys.executable, "-c", "raise SystemExit(7)"])

    def watch() -> bool:
        standing.watch_over()
        return False

    with pytest.raises(
        DevstackFailed, match=f"worker .exit code 7. ended {MOST_RESTARTS + 1} times; see its log"
    ):
        wait_until(watch)

    assert len(said) == MOST_RESTARTS
    assert said[0].startswith("worker (exit code 7) ended unexpectedly and is restarted; see its log ")
    bystander.stop()


def test_a_server_that_has_died_is_named(tmp_path: Path) -> None:
    standing = Stack(tmp_path, print)
    server = standing.spawn("server", [sys.executable, "-c", ""])
    standing._servers["PostgreSQL"] = server.pid

    with pytest.raises(DevstackFailed, match=r"PostgreSQL .process .* ended unexpectedly"):
        wait_until(standing.watch_over)
    server.stop()


def test_the_env_file_is_for_its_owner_and_makes_psql_commands_and_applications_work(tmp_path: Path) -> None:
    standing = Stack(tmp_path, print)
    standing.reader_url = "postgresql+psycopg2://cleave_reader:it's@127.0.0.1:5/cleave"
    standing.client_url = "postgresql+psycopg2://shop:its@127.0.0.1:5/cleave"
    standing.env = {"CLEAVE_DATABASE_URL": "postgresql://a:it's@h/d", "HOME": "/nowhere"}
    secret = standing._serve_applications()["CLEAVE_API_SECRET"]

    standing._write_env_file()

    assert standing.env_file.stat().st_mode & 0o777 == 0o600
    names = ("READER_URL", "CLIENT_URL", "CLEAVE_DATABASE_URL", "CLEAVE_EMBEDDED_URL", "CLEAVE_URL", "HOME")
    show = " ".join(f'"${name}"' for name in (*names, "CLEAVE_API_SECRET", "CLEAVE_TOKEN"))
    done = subprocess.run(
        ["bash", "-c", f'. {standing.env_file} && "$PSQL" --version && printf "%s\\n" {show}'],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": os.defpath},
    )
    psql, *told, said_secret, token = done.stdout.splitlines()
    assert psql.startswith("psql (PostgreSQL)")
    assert told == [
        "postgresql://cleave_reader:it%27s@127.0.0.1:5/cleave",
        "postgresql://shop:its@127.0.0.1:5/cleave",
        "postgresql://a:it's@h/d",
        "",  # the commands look at the logs with their own login
        standing.worker_url,
        "",
    ]
    assert said_secret == secret
    assert access.read(secret, f"Bearer {token}").topics
    standing._running.close()
