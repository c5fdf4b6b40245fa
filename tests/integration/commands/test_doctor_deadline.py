"""`cleave doctor` answers in time, whatever hangs, and says what did not answer."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from controller.commands import doctor
from controller.devstack.postgres import FORGETFUL, EmbeddedPostgres
from controller.doctor import pulsar
from controller.settings import PROJECT_ROOT
from tests.support.command_line import CommandLine
from tests.support.doctor_checks import DATABASE_CHECKS
from tests.support.silent_server import SilentServer

GENEROUS_SECONDS = 20.0
"""The command takes less than 10 s; the machine of the tests may be busy with others."""


@pytest.fixture
def frozen_database(tmp_path: Path) -> Iterator[str]:
    """URL of a server whose processes are all stopped."""
    with EmbeddedPostgres(tmp_path / "postgres", settings=FORGETFUL) as server:
        head = psutil.Process(server.pid)
        head.suspend()  # so that it starts no more processes
        family = [head, *head.children(recursive=True)]
        for process in family:
            with suppress(psutil.NoSuchProcess):  # a process of the start that has just ended
                process.suspend()
        try:
            yield server.url("postgres")
        finally:
            for process in family:
                with suppress(psutil.NoSuchProcess):  # a child ends as soon as its head goes on
                    process.resume()
            server.kill()
            server.destroy()


@pytest.fixture
def silent() -> Iterator[str]:
    """Address of a web server that never answers."""
    with SilentServer() as server:
        yield f"http://127.0.0.1:{server.port}"


def ask(*arguments: str, **settings: str) -> tuple[float, int, dict[str, tuple[str, str]]]:
    """Seconds, exit code, and level and sentence by check, of a process of its own."""
    env = {f"CLEAVE_{name.upper()}": value for name, value in settings.items()} | {"PATH": "/usr/bin:/bin"}
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "controller.commands.cli", "doctor", "--json", *arguments],
        cwd=PROJECT_ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    rows = json.loads(done.stdout)
    found = {row["check"]: (row["level"], row["finding"]) for row in rows}
    return time.monotonic() - began, done.returncode, found


def test_whatever_hangs_it_answers_and_names_what_is_silent(frozen_database: str, silent: str) -> None:
    seconds, code, found = ask(
        database_url=frozen_database,
        loader_url=frozen_database,
        pulsar_admin_url=silent,
        airflow_url=silent,
        airflow_token="token",
        call_timeout_seconds="60",
    )

    assert code == 1
    assert seconds < GENEROUS_SECONDS
    wrong = {check for check, (level, _) in found.items() if level == "wrong"}
    assert wrong == {
        *DATABASE_CHECKS,
        "pulsar",
        "isolation policies",
        "airflow",
        "airflow DAGs",
        "airflow connection",
    }
    assert "timeout expired" in found["database"][1]
    assert "within 3 s" in found["pulsar"][1]
    assert found["spark"][0] == "ok", "the others are looked at"


def test_a_connection_that_was_made_before_the_freeze_hangs_no_longer(
    cleave: CommandLine, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A statement hangs as a lock would, which no connection attempt sees."""
    monkeypatch.setattr(
        "controller.doctor.control_plane._GAPS", "(SELECT pg_sleep(600) AS slept, 1e9 AS gap_seconds)"
    )
    monkeypatch.setenv("CLEAVE_AIRFLOW_URL", silent)
    began = time.monotonic()

    found = {row["check"]: row for row in json.loads(cleave("doctor", "--json").out)}

    assert time.monotonic() - began < GENEROUS_SECONDS
    assert found["entry buckets"]["level"] == "wrong"
    assert "did not answer within the time limit" in found["entry buckets"]["finding"]
    assert found["schema"]["level"] == "ok"


def test_a_check_that_knows_no_deadline_is_reported_and_not_waited_for(
    cleave: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = threading.Event()
    monkeypatch.setitem(doctor.CHECKS, "landing area", lambda _cleave: str(hanging.wait(30)))

    answer = cleave("doctor", "--json")
    hanging.set()

    found = {row["check"]: (row["level"], row["finding"]) for row in json.loads(answer.out)}
    assert answer.code == 1
    assert found["landing area"][0] == "wrong"
    assert found["landing area"][1].startswith("no answer within")
    assert found["schema"] == ("ok", "up to date")


def test_namespaces_that_are_not_looked_at_in_time_are_counted(
    cleave: CommandLine, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "CHECKS", {"java": doctor.CHECKS["java"]})
    monkeypatch.setattr(doctor, "REPORT_SECONDS", pulsar.LONGEST_CALL_SECONDS + 1.0)
    monkeypatch.setenv("CLEAVE_PULSAR_ADMIN_URL", silent)

    answer = cleave("doctor", "--json", "--namespace", "a/c", "--namespace", "a/b")

    found = {row["check"]: (row["level"], row["finding"]) for row in json.loads(answer.out)}
    assert found["pulsar a/b"][0] == "wrong"
    assert found["pulsar namespaces"] == (
        "note",
        "1 namespaces were not checked in time (a/c first); name the ones to check with --namespace",
    )
