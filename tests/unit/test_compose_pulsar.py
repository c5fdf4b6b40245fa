"""docker-compose.yml and Pulsar: the profile's broker, and how the services reach that one or another with its secrets."""

from __future__ import annotations

import re
import subprocess
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller.bootstrap import pulsar_access
from controller.dataplane.pulsar.cluster_access import PulsarAccess
from controller.devstack.pulsar.jars import PULSAR_4
from controller.settings import load_settings

ROOT = Path(__file__).parents[2]
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
PULSAR_SETTINGS = {f"CLEAVE_PULSAR_{field.name.upper()}" for field in fields(PulsarAccess)} | {
    "CLEAVE_PULSAR_BROKER_URL"
}
OFFERED = dict(
    line.removeprefix("#").split("=", 1)
    for line in (ROOT / ".env.example").read_text().splitlines()
    if re.match(r"#[A-Z_]+=", line)
)
CREDENTIALS = "/run/secrets/pulsar"


def test_a_broker_comes_with_its_profile_only_and_is_the_one_that_tests_run() -> None:
    assert {name: service["profiles"] for name, service in SERVICES.items() if "profiles" in service} == {
        "pulsar": ["pulsar"],
        "prometheus": ["monitoring"],
        "grafana": ["monitoring"],
    }
    assert SERVICES["pulsar"]["image"] == f"apachepulsar/pulsar:{PULSAR_4}"
    check = SERVICES["pulsar"]["healthcheck"]["test"]
    assert check[-1] == "http://127.0.0.1:8080/admin/v2/brokers/health"


def test_how_pulsar_is_reached_comes_from_the_environment_or_not_at_all() -> None:
    """A key without a value is handed on where it is set; one with an empty value would be an address that is none."""
    keys_of_applications = {name for name in PULSAR_SETTINGS if name.startswith("CLEAVE_PULSAR_ENCRYPTION_")}
    assert len(keys_of_applications) == 3
    # The token is a file's, and in nobody's environment; no service reads what applications encrypt.
    handed_on = PULSAR_SETTINGS - keys_of_applications - {"CLEAVE_PULSAR_TOKEN"}
    for name in ("cleave-worker", "airflow-scheduler", "airflow-dag-processor"):
        environment = SERVICES[name]["environment"]
        told = {variable: value for variable, value in environment.items() if "_PULSAR_" in variable}
        assert told == dict.fromkeys(handed_on), name

    assert set(OFFERED) == handed_on | {"COMPOSE_PROFILES"}
    assert OFFERED["COMPOSE_PROFILES"] == "pulsar"
    assert OFFERED["CLEAVE_PULSAR_ADMIN_URL"] == "http://pulsar:8080"
    assert OFFERED["CLEAVE_PULSAR_SERVICE_URL"] == "pulsar://pulsar:6650"
    advertised = SERVICES["pulsar"]["command"][
        SERVICES["pulsar"]["command"].index("--advertised-address") + 1
    ]
    assert advertised == SERVICES["pulsar"]["hostname"] == "pulsar"


def test_what_opens_the_brokers_is_mounted_where_they_are_talked_to_and_kept_out_of_git() -> None:
    mounts = {
        name: [volume for volume in service.get("volumes", []) if "secrets" in volume]
        for name, service in SERVICES.items()
    }

    assert {name: volumes for name, volumes in mounts.items() if volumes} == {
        name: [f"./secrets/pulsar:{CREDENTIALS}:ro"]
        for name in ("cleave-worker", "airflow-apiserver", "airflow-scheduler")
    }
    assert (ROOT / "secrets/pulsar/.gitignore").read_text().splitlines() == ["*", "!.gitignore"]
    api_server, scheduler, others = (
        [volume for volume in SERVICES[name]["volumes"] if "secrets" not in volume]
        for name in ("airflow-apiserver", "airflow-scheduler", "airflow-triggerer")
    )
    assert api_server == scheduler == others


def test_what_is_offered_for_brokers_of_ones_own_is_taken_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in PULSAR_SETTINGS:
        monkeypatch.delenv(variable, raising=False)
    named = {Path(value).name for value in OFFERED.values() if value.startswith(f"{CREDENTIALS}/")}
    for name in named:
        (tmp_path / name).write_text("hush\n")
    lines = [
        f"{variable}={value.replace(CREDENTIALS, str(tmp_path))}\n" for variable, value in OFFERED.items()
    ]
    (tmp_path / ".env").write_text("".join(lines))
    monkeypatch.chdir(tmp_path)

    access = pulsar_access(load_settings())

    assert named == {"token", "ca.pem", "cert.pem", "key.pem"}
    assert access == PulsarAccess(
        admin_url="http://pulsar:8080",
        service_url="pulsar://pulsar:6650",
        token_file=str(tmp_path / "token"),
        ca_file=str(tmp_path / "ca.pem"),
        cert_file=str(tmp_path / "cert.pem"),
        key_file=str(tmp_path / "key.pem"),
    )


def test_the_page_switches_on_only_lines_that_are_offered() -> None:
    """For the profile its three lines and no file that is not there; then the token's."""
    page = (ROOT / "docs" / "how-to" / "run-with-docker-compose.md").read_text()
    scripts = re.findall(r"^sed -i '(.*)' \.env$", page, re.MULTILINE)
    text, switched = (ROOT / ".env.example").read_text(), []
    for script in scripts:
        done = subprocess.run(["sed", script], input=text, capture_output=True, text=True, check=True)
        before = set(text.splitlines())
        switched.append({line.split("=")[0] for line in done.stdout.splitlines() if line not in before})

    assert switched == [
        {"COMPOSE_PROFILES", "CLEAVE_PULSAR_ADMIN_URL", "CLEAVE_PULSAR_SERVICE_URL"},
        {"CLEAVE_PULSAR_TOKEN_FILE"},
    ]
