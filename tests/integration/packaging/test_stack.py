"""docker-compose.yml on an engine: every service becomes healthy, whichever process dies the stack recovers, and health tells of the database.

`make matrix ONLY=compose` runs these tests; the cell gives them the command that drives the stack.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest
import yaml

from tests.matrix.compose import RECOVERED
from tests.matrix.environments import PROJECT

pytestmark = [pytest.mark.matrix, pytest.mark.timeout(1200)]

SERVICES = yaml.safe_load((PROJECT / "docker-compose.yml").read_text())["services"]
LASTING = [name for name, one in SERVICES.items() if one.get("restart") != "no" and "profiles" not in one]
RECOVERS_WITHIN = 120
AGGREGATIONS = """
    SELECT count(*) FROM dag_run
     WHERE dag_id = 'cleave_load_aggregation' AND state = 'success' AND start_date > to_timestamp(:since)
"""


def compose(*words: str, given: str | None = None) -> str:
    """What the command says; it succeeds."""
    done = attempt(*words, given=given)
    assert done.returncode == 0, f"{words}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


def attempt(*words: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
    """The command has run on the stack."""
    command = [*shlex.split(os.environ["CLEAVE_TEST_COMPOSE"]), *words]
    return subprocess.run(command, cwd=PROJECT, input=given, capture_output=True, text=True, check=False)


def health() -> dict[str, str]:
    """Of each service that has a container that runs."""
    lines = [json.loads(line) for line in compose("ps", "--format", "json").splitlines()]
    return {one["Service"]: one["Health"] for one in lines}


def sql(database: str, statement: str, **values: object) -> subprocess.CompletedProcess[str]:
    """The statement has run as PostgreSQL's superuser."""
    told = [f"--set={name}={value}" for name, value in values.items()]
    command = ["psql", "--username", "postgres", "--no-align", "--tuples-only", *told, database]
    return attempt("exec", "-T", "postgres", *command, given=statement)


def until(holds: Callable[[], bool], seconds: float) -> float:
    """Seconds until it holds; fails after too many."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < seconds, f"not within {seconds} s: {health()}"
        time.sleep(1)
    return time.monotonic() - began


@pytest.fixture(scope="module", autouse=True)
def stack() -> Iterator[None]:
    """The stack, which is healthy, and has a topic; afterwards nothing of it is left."""
    RECOVERED.unlink(missing_ok=True)
    try:
        compose("up", "--detach", "--wait")
        attempt(
            "exec",
            "-T",
            "cleave-worker",
            "cleave",
            "topics",
            "create",
            "acme/matrix/first",
            "--segments",
            "2",
        )
        yield
    finally:
        attempt("down", "--volumes", "--timeout", "20")


def container(service: str) -> str:
    return compose("ps", "--quiet", service).strip()


def inspected(service: str, field: str) -> str:
    """The field of the service's container."""
    command = ["docker", "inspect", "--format", f"{{{{{field}}}}}", container(service)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_every_service_is_healthy() -> None:
    assert health() == dict.fromkeys(LASTING, "healthy")


def test_the_check_up_finds_nothing_wrong_and_commands_have_an_actor() -> None:
    compose("exec", "-T", "cleave-worker", "cleave", "doctor")
    create = ("cleave", "topics", "create", "acme/matrix/second")
    compose("exec", "-T", "--env", "CLEAVE_ACTOR=mara", "cleave-worker", *create)

    asked = sql("cleave", "SELECT actor FROM inspect.operations WHERE topic = 'topic://acme/matrix/second'")
    assert asked.stdout.split() == ["mara"]


def test_code_belongs_to_root() -> None:
    command = "touch /opt/cleave/.venv/lib/python3.11/site-packages/controller/own.py || touch /opt/cleave/dags/own.py"

    assert "Permission denied" in attempt("exec", "-T", "cleave-worker", "sh", "-c", command).stderr


@pytest.mark.parametrize("service", LASTING)
def test_the_stack_recovers_when_a_process_dies(service: str) -> None:
    """As the kernel's out-of-memory killer does it: `docker kill` would count as stopped by hand."""
    started, since = inspected(service, ".State.StartedAt"), time.time()

    def recovered() -> bool:
        return inspected(service, ".State.StartedAt") != started and health() == dict.fromkeys(
            LASTING, "healthy"
        )

    def aggregated() -> bool:
        return sql("airflow", AGGREGATIONS, since=since).stdout.strip() not in ("", "0")

    os.kill(int(inspected(service, ".State.Pid")), signal.SIGKILL)
    healthy = until(recovered, RECOVERS_WITHIN)
    whole = healthy + until(aggregated, RECOVERS_WITHIN - healthy)

    with RECOVERED.open("a") as table:
        table.write(f"{service} {healthy:.0f} {whole:.0f}\n")


def test_a_worker_that_the_database_refuses_is_unhealthy() -> None:
    password = (
        compose("exec", "-T", "cleave-worker", "printenv", "CLEAVE_DATABASE_URL")
        .split(":")[2]
        .partition("@")[0]
    )
    change = "ALTER ROLE cleave_app PASSWORD :'password'; SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'cleave_app';"
    try:
        assert sql("cleave", change, password="another").returncode == 0
        until(lambda: health().get("cleave-worker") == "unhealthy", 180)
    finally:
        sql("cleave", change, password=password)
    until(lambda: health().get("cleave-worker") == "healthy", RECOVERS_WITHIN)
