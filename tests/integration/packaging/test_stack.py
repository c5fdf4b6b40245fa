"""docker-compose.yml on an engine: every service becomes healthy, the stack recovers whichever process dies, and health
includes the database.

`make matrix ONLY=compose` runs these tests; the cell gives them the command that drives the stack.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlencode

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
AGGREGATING = (
    "SELECT count(*) FROM task_instance WHERE dag_id = 'cleave_load_aggregation' AND state = 'running'"
)
APPLIED = (
    "SELECT count(*) FROM inspect.load_runs WHERE engine = 'spark' AND applied_at > to_timestamp(:since)"
)
PASSWORD = """
    ALTER ROLE :"role" PASSWORD :'password';
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = :'role';
"""
PROMETHEUS = "http://127.0.0.1:9090/api/v1"
METRICS = 'count({job="cleave-workers", __name__=~"cleave_.+"}) > 10'


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


def until(holds: Callable[[], bool], seconds: float, every: float = 1.0) -> float:
    """Seconds until it holds; fails after too many."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < seconds, f"not within {seconds} s: {health()}"
        time.sleep(every)
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
        attempt("--profile", "*", "down", "--volumes", "--timeout", "20")


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


def test_spark_aggregates() -> None:
    until(lambda: aggregated(0), RECOVERS_WITHIN)


@pytest.mark.parametrize("service", LASTING)
def test_the_stack_recovers_when_a_process_dies(service: str) -> None:
    recover_from_kill(service, service)


@pytest.mark.parametrize("service", ["spark-connect", "airflow-scheduler"])
def test_the_stack_recovers_when_a_process_dies_during_an_aggregation(service: str) -> None:
    until(lambda: sql("airflow", AGGREGATING).stdout.strip() == "1", RECOVERS_WITHIN, every=0.1)

    recover_from_kill(service, f"{service} (aggregating)")


def recover_from_kill(service: str, label: str) -> None:
    """Kill the process as the kernel's out-of-memory killer does: `docker kill` would count as stopped by hand."""
    started, since = inspected(service, ".State.StartedAt"), time.time()

    def recovered() -> bool:
        return inspected(service, ".State.StartedAt") != started and health() == dict.fromkeys(
            LASTING, "healthy"
        )

    os.kill(int(inspected(service, ".State.Pid")), signal.SIGKILL)
    healthy = until(recovered, RECOVERS_WITHIN)
    whole = healthy + until(lambda: aggregated(since), RECOVERS_WITHIN - healthy)

    with RECOVERED.open("a") as table:
        table.write(f"{label} {healthy:.0f} {whole:.0f}\n")


def aggregated(since: float) -> bool:
    """True if Spark has computed loads after this time, in a run that began after it and succeeded."""
    answers = sql("airflow", AGGREGATIONS, since=since), sql("cleave", APPLIED, since=since)
    return all(answer.stdout.strip() not in ("", "0") for answer in answers)


@pytest.mark.parametrize(
    ("service", "role", "variable"),
    [
        ("cleave-worker", "cleave_app", "CLEAVE_DATABASE_URL"),
        ("airflow-apiserver", "airflow", "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"),
    ],
)
def test_a_service_that_the_database_refuses_is_unhealthy(service: str, role: str, variable: str) -> None:
    url = compose("exec", "-T", service, "printenv", variable)
    password = url.split(":")[2].partition("@")[0]
    try:
        assert sql("cleave", PASSWORD, role=role, password="another").returncode == 0
        until(lambda: health().get(service) == "unhealthy", 180)
    finally:
        sql("cleave", PASSWORD, role=role, password=password)
    until(lambda: health() == dict.fromkeys(LASTING, "healthy"), RECOVERS_WITHIN)


def test_a_spark_server_that_hangs_is_unhealthy() -> None:
    try:
        compose("exec", "-T", "spark-connect", "sh", "-c", "kill -STOP $(pidof java)")
        until(lambda: health().get("spark-connect") == "unhealthy", 180)
    finally:
        compose("exec", "-T", "spark-connect", "sh", "-c", "kill -CONT $(pidof java)")
    until(lambda: health().get("spark-connect") == "healthy", RECOVERS_WITHIN)


def test_a_prometheus_in_the_network_has_the_worker_s_metrics_and_the_alerts() -> None:
    monitoring = ("--profile", "monitoring")
    compose(*monitoring, "up", "--detach", "--wait", "prometheus")
    try:
        until(lambda: bool(prometheus("query", query=METRICS)["result"]), RECOVERS_WITHIN)
        rules = [rule["name"] for group in prometheus("rules")["groups"] for rule in group["rules"]]
    finally:
        compose(*monitoring, "rm", "--stop", "--force", "prometheus")

    alerts = yaml.safe_load((PROJECT / "docs" / "monitoring" / "alerts.yml").read_text())
    assert sorted(rules) == sorted(
        rule.get("alert") or rule["record"] for group in alerts["groups"] for rule in group["rules"]
    )


def prometheus(path: str, **parameters: str) -> dict[str, Any]:
    """What Prometheus answers."""
    url = f"{PROMETHEUS}/{path}?{urlencode(parameters)}"
    with urllib.request.urlopen(url, timeout=10) as answer:
        data: dict[str, Any] = json.load(answer)["data"]
    return data
