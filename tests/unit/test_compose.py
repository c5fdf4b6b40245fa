"""docker-compose.yml, read: no engine is needed to see that it names only what exists and gives no secret away.

What its services run is tried elsewhere with the same commands: the database's set-up, Airflow, Spark Connect, the
worker, the collector. What it says of Pulsar: `test_compose_pulsar`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import zipfile
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from packaging.requirements import Requirement

from controller.commands.cli import app
from controller.settings import Settings

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docker-compose.yml").read_text()
PAGE = (ROOT / "docs" / "how-to" / "run-with-docker-compose.md").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
LASTING = [name for name, service in SERVICES.items() if service.get("restart") != "no"]
IMAGE_VARIABLE = "CLEAVE_IMAGE"
KEYS = {
    "build", "command", "depends_on", "environment", "healthcheck", "hostname", "image", "init", "logging", "mem_limit",
    "ports", "profiles", "pull_policy", "restart", "stop_grace_period", "volumes",
}  # fmt: skip


def of_program(program: str) -> list[list[str]]:
    """Arguments of every service's command and health check that runs the program."""
    asked = [service.get("command", []) for service in SERVICES.values()]
    asked += [service["healthcheck"]["test"][1:] for service in SERVICES.values() if "healthcheck" in service]
    return [command[1:] for command in asked if command and command[0] == program]


def test_the_services_are_those_that_the_stack_has() -> None:
    assert set(SERVICES) == {
        *("postgres", "cleave-check", "cleave-migrate", "cleave-worker"),
        *(
            "airflow-init",
            "airflow-apiserver",
            "airflow-scheduler",
            "airflow-dag-processor",
            "airflow-triggerer",
        ),
        *("spark-connect", "pulsar", "prometheus", "grafana"),
    }
    assert set().union(*SERVICES.values()) <= KEYS


@pytest.mark.parametrize("name", LASTING)
def test_what_lasts_has_a_health_check_and_comes_back(name: str) -> None:
    check = SERVICES[name]["healthcheck"]

    assert check["test"][0] == "CMD"
    assert {"interval", "timeout", "retries", "start_period"} <= set(check)
    assert SERVICES[name]["restart"] == "unless-stopped"


def test_what_is_waited_for_can_be_waited_for() -> None:
    for name, service in SERVICES.items():
        for other, how in service.get("depends_on", {}).items():
            expected = "service_healthy" if other in LASTING else "service_completed_successfully"
            assert (name, other, how["condition"]) == (name, other, expected)


def test_no_secret_has_a_default() -> None:
    variables = re.findall(r"(?<!\$)\$\{(\w+)([^}]*)\}", TEXT)
    given = dict(
        line.split("=", 1)
        for line in (ROOT / ".env.example").read_text().splitlines()
        if line and not line.startswith("#")
    )

    defaults = {name: rest for name, rest in variables if rest.startswith(":-")}
    secrets = {name for name, _ in variables} - defaults.keys()
    assert defaults == {
        IMAGE_VARIABLE: ":-cleave:local",
        "CLEAVE_LOG_LEVEL": ":-info",
        "AIRFLOW_LOG_LEVEL": ":-INFO",
    }
    assert {rest[:2] for name, rest in variables if name in secrets} == {":?"}
    assert secrets == set(given)
    assert set(given.values()) == {""}
    assert not re.search(r"(?<!\$)\$[A-Za-z_]", TEXT), "a variable without braces takes nothing for an answer"


def test_whatever_is_called_a_secret_comes_from_the_environment() -> None:
    for name, service in SERVICES.items():
        for variable, value in service.get("environment", {}).items():
            if variable.endswith("_FILE"):  # where a secret is
                assert value is None or str(value).startswith("/"), f"{name}: {variable}"
            elif re.search(r"PASSWORD$|SECRET|TOKEN|_KEY$", variable):
                assert re.fullmatch(r"\$\{\w+:\?[^}]*\}", value), f"{name}: {variable}"
            assert not re.search(r"://[^/:]+:(?!\$\{)[^/@]+@", str(value)), f"{name}: {variable}"


def test_ports_are_published_on_loopback_only() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}

    assert published == {
        "airflow-apiserver": ["127.0.0.1:8080:8080"],
        "cleave-worker": ["127.0.0.1:8470:8470"],
        "grafana": ["127.0.0.1:3000:3000"],
        "prometheus": ["127.0.0.1:9090:9090"],
    }


def test_no_service_depends_on_the_network_of_another_one() -> None:
    """A service in the network of a container that has died would stay without a network until somebody recreates it."""
    assert [name for name, service in SERVICES.items() if "network_mode" in service] == []


def test_one_service_builds_the_image_and_the_others_use_it() -> None:
    builders = [name for name, service in SERVICES.items() if "build" in service]
    users = [
        name
        for name, service in SERVICES.items()
        if service["image"] == SERVICES["cleave-check"]["image"] and name not in builders
    ]

    assert builders == ["cleave-check"]
    assert {SERVICES[name]["pull_policy"] for name in users} == {"never"}


def test_logs_are_bounded() -> None:
    assert [
        name for name, service in SERVICES.items() if "max-size" not in service["logging"]["options"]
    ] == []


def test_applications_reach_the_worker_where_it_says_that_it_serves() -> None:
    told = SERVICES["cleave-worker"]["environment"]

    assert told["CLEAVE_SERVE_HOST"] == "0.0.0.0", "or only its own container would reach it"
    assert told["CLEAVE_SERVE_URL"] == f"http://cleave-worker:{told['CLEAVE_SERVE_PORT']}"
    signs = [name for name, one in SERVICES.items() if "CLEAVE_API_SECRET" in one.get("environment", {})]
    assert signs == ["cleave-check", "cleave-worker"], "a process with the secret can make tokens"


def test_a_prometheus_in_the_network_reaches_what_serves_metrics() -> None:
    words = SERVICES["cleave-worker"]["command"]
    scraped = yaml.safe_load((ROOT / "docker" / "prometheus.yml").read_text())["scrape_configs"]

    assert words[words.index("--metrics-host") + 1] == "0.0.0.0", "only its own container would reach it"
    assert [job["static_configs"][0]["targets"] for job in scraped] == [["cleave-worker:9464"]]


@pytest.fixture
def fresh(tmp_path: Path) -> Path:
    """The files with which secrets are made, in a directory of their own."""
    (tmp_path / "docker").mkdir()
    for name in (".env.example", "docker/make-env.sh", "docker/check-env.sh"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    return tmp_path


def script(directory: Path, name: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The script has run in the directory, with these variables and a PATH."""
    command = ["/bin/sh", str(directory / "docker" / name)]
    env = {"PATH": os.environ["PATH"], **environment}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def secrets_of(directory: Path) -> dict[str, str]:
    """What is in .env."""
    lines = (directory / ".env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def test_the_secrets_that_are_made_are_accepted(fresh: Path) -> None:
    """Airflow signs with HS512, which needs a key of 64 bytes."""
    assert script(fresh, "make-env.sh").returncode == 0
    made = secrets_of(fresh)

    assert script(fresh, "check-env.sh", **made).returncode == 0
    assert len(made.pop("AIRFLOW_FERNET_KEY")) == 44
    assert {len(secret) for secret in made.values()} == {64}
    assert len(set(made.values())) == len(made)
    assert (fresh / ".env").stat().st_mode & 0o077 == 0, "nobody else of the machine may read it"


def test_without_the_program_that_draws_secrets_none_are_written(fresh: Path) -> None:
    (fresh / "bin").mkdir()
    for name in ("dirname", "tr", "mv"):
        (fresh / "bin" / name).symlink_to(str(shutil.which(name)))

    refused = script(fresh, "make-env.sh", PATH=str(fresh / "bin"))

    assert (refused.returncode, (fresh / ".env").exists()) == (2, False)
    assert "openssl is missing" in refused.stderr


def test_secrets_that_exist_are_never_replaced(fresh: Path) -> None:
    (fresh / ".env").write_text("POSTGRES_PASSWORD=mine\n")

    refused = script(fresh, "make-env.sh")

    assert (refused.returncode, (fresh / ".env").read_text()) == (2, "POSTGRES_PASSWORD=mine\n")
    assert ".env exists and is left as it is" in refused.stderr


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        (
            "CLEAVE_APP_PASSWORD",
            "p@ss",
            "CLEAVE_APP_PASSWORD contains a character other than letters and digits",
        ),
        *(
            (name, "p@ss", f"{name} contains a character other than letters and digits")
            for name in (
                *("AIRFLOW_DB_PASSWORD", "CLEAVE_OWNER_PASSWORD", "CLEAVE_LOAD_PASSWORD"),
                *("CLEAVE_READER_PASSWORD", "CLEAVE_APPLICATION_PASSWORD", "SPARK_CONNECT_TOKEN"),
            )
        ),
        ("AIRFLOW_FERNET_KEY", "short", "AIRFLOW_FERNET_KEY is not 32 bytes in URL-safe Base64"),
        ("AIRFLOW_FERNET_KEY", "c2hvcnQ=", "AIRFLOW_FERNET_KEY is not 32 bytes in URL-safe Base64"),
        ("AIRFLOW_FERNET_KEY", "", "AIRFLOW_FERNET_KEY is not 32 bytes in URL-safe Base64"),
        ("AIRFLOW_FERNET_KEY", "ä", "AIRFLOW_FERNET_KEY is not 32 bytes in URL-safe Base64"),
        ("AIRFLOW_JWT_SECRET", "short", "AIRFLOW_JWT_SECRET has 5 characters; Airflow needs at least 64"),
        (
            "AIRFLOW_API_SECRET_KEY",
            "short",
            "AIRFLOW_API_SECRET_KEY has 5 characters; Airflow needs at least 64",
        ),
        ("CLEAVE_API_SECRET", "", "CLEAVE_API_SECRET has 0 characters; give at least 32"),
        ("CLEAVE_API_SECRET", "short", "CLEAVE_API_SECRET has 5 characters; give at least 32"),
    ],
)
def test_a_bad_secret_is_one_line_before_anything_starts(
    fresh: Path, name: str, value: str, sentence: str
) -> None:
    script(fresh, "make-env.sh")

    refused = script(fresh, "check-env.sh", **{**secrets_of(fresh), name: value})

    assert refused.returncode == 2
    [line] = refused.stderr.splitlines()
    assert sentence in line


def test_secrets_are_checked_with_all_that_the_check_reads_before_a_service_starts() -> None:
    check = (ROOT / "docker" / "check-env.sh").read_text()
    read = set(re.findall(r"\b(?:AIRFLOW|CLEAVE|SPARK)_[A-Z_]+\b", check))

    assert SERVICES["cleave-check"]["command"] == ["docker/check-env.sh"]
    assert set(SERVICES["cleave-check"]["environment"]) == read

    def waits_for(name: str) -> set[str]:
        needed = set(SERVICES[name].get("depends_on", {}))
        return needed.union(*(waits_for(one) for one in needed))

    with_secrets = {
        name
        for name, service in SERVICES.items()
        if read & set(re.findall(r"\$\{(\w+)", str(service.get("environment", {}))))
    } - {"cleave-check"}
    assert len(with_secrets) >= 6
    assert {name for name in with_secrets if "cleave-check" not in waits_for(name)} == set()


def test_the_page_stops_the_services_of_every_profile() -> None:
    """Without their profiles, their containers would stay, and so would the network and their volumes."""
    stops = re.findall(r"^docker compose (.*)\bdown\b", PAGE, re.MULTILINE)

    assert set(stops) == {"--profile '*' "}


def test_the_page_leaves_the_quickstart_its_topic() -> None:
    quickstart = (ROOT / "docs" / "quickstart.md").read_text()
    made = set(re.findall(r"topics create (\S+)", PAGE))

    assert made
    assert not made & set(re.findall(r"topics create (\S+)", quickstart))


def test_the_metadata_of_airflow_is_for_airflow_only() -> None:
    """Whoever runs user code elsewhere gets neither Airflow's database nor its keys, nor the owner's password."""
    for name in ("cleave-worker", "spark-connect"):
        told = " ".join(f"{k}={v}" for k, v in SERVICES[name].get("environment", {}).items())
        assert not re.search("AIRFLOW_(?!URL|USERNAME|PASSWORD)|OWNER|POSTGRES_PASSWORD", told), name


def test_commands_of_cleave_exist_with_their_options() -> None:
    asked = of_program("cleave")

    assert [words[0] for words in asked] == ["migrate", "worker"]
    for words in asked:
        command = typer.main.get_command(app).commands[words[0]].load()  # type: ignore[attr-defined]
        options = {name for parameter in command.params for name in parameter.opts}
        assert {word for word in words[1:] if word.startswith("--")} <= options


def test_settings_exist() -> None:
    known = {
        str(field.validation_alias or f"CLEAVE_{name.upper()}")
        for name, field in Settings.model_fields.items()
    }
    known |= {"CLEAVE_OWNER_URL", "CLEAVE_LOG_LEVEL"}
    told = {name for name in SERVICES if name not in ("cleave-check", "postgres")}
    given = {variable for name in told for variable in SERVICES[name].get("environment", {})}

    assert {variable for variable in given if variable.startswith("CLEAVE_")} <= known
    assert "SPARK_MASTER" in given & known


def test_classes_of_spark_exist() -> None:
    import pyspark

    home = Path(pyspark.__file__).parent
    asked = of_program("spark-class")
    classes = [words[0] for words in asked]
    classes += [value for words in asked for option, value in pairwise(words) if option == "--class"]
    files = {f"{name.replace('.', '/')}.class" for name in classes}
    for jar in (home / "jars").glob("spark-*.jar"):
        files -= set(zipfile.ZipFile(jar).namelist())

    assert len(classes) == 2
    assert files == set()
    assert (home / "bin" / "spark-class").exists()


@pytest.mark.airflow
def test_commands_and_settings_of_airflow_exist() -> None:
    from airflow.cli.cli_parser import get_parser
    from airflow.configuration import conf

    asked = of_program("airflow")
    for words in asked:
        get_parser().parse_args(words)
    sections = conf.configuration_description
    for variable in SERVICES["airflow-scheduler"]["environment"]:
        if variable.startswith("AIRFLOW__"):
            _, section, key = variable.lower().split("__")
            assert key in sections[section]["options"], variable

    assert {words[0] for words in asked} == {"api-server", "dag-processor", "triggerer"}
    assert "exec airflow scheduler" in (ROOT / "docker" / "airflow-scheduler.sh").read_text()


def test_a_task_of_a_scheduler_that_died_is_reset_in_time_for_an_aggregation_within_two_minutes() -> None:
    """At the latest a minute after the reset the next aggregation begins."""
    told = SERVICES["airflow-scheduler"]["environment"]
    prefix = "AIRFLOW__SCHEDULER__"

    assert (
        told[f"{prefix}SCHEDULER_HEALTH_CHECK_THRESHOLD"] + told[f"{prefix}ORPHANED_TASKS_CHECK_INTERVAL"]
        <= 45
    )
    assert told[f"{prefix}TASK_INSTANCE_HEARTBEAT_TIMEOUT"] <= 45


def test_every_service_has_a_ceiling_of_memory() -> None:
    """One that runs away takes neither the machine nor the database along."""
    assert [
        name
        for name, service in SERVICES.items()
        if not re.fullmatch(r"\d+[mg]", service.get("mem_limit", ""))
    ] == []


def commands_of(service: dict[str, Any]) -> list[str]:
    """Words of the service's command and health check."""
    return [*service.get("command", []), *service.get("healthcheck", {}).get("test", [])]


def test_files_that_are_named_exist() -> None:
    mounted = [volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", [])]
    named = {volume for volume in mounted if not volume.startswith("./")}

    assert named == set(COMPOSE["volumes"])
    for path in (
        *(
            word
            for service in SERVICES.values()
            for word in commands_of(service)
            if word.startswith("docker/")
        ),
        "docker/postgres-init.sh",
    ):
        assert os.access(ROOT / path, os.X_OK), path
    assert [volume for volume in mounted if volume.startswith("./") and not (ROOT / volume).exists()] == []


DOCKERFILE = (ROOT / "Dockerfile").read_text()


def test_the_image_is_built_from_what_is_sent_to_the_builder() -> None:
    sent = set(re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE))
    copied = [line.split()[:-1] for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE)]
    sources = {word for words in copied for word in words if not word.startswith("--")}

    assert {Path(source).parts[0] for source in sources} == sent
    assert [source for source in sources if not (ROOT / source).exists()] == []


def test_a_step_of_the_image_that_fails_ends_the_build() -> None:
    steps = re.findall(r"^RUN (.+(?:\n (?:.|\n )+)*)", DOCKERFILE, re.MULTILINE)
    outside_braces = [re.sub(r"\{[^{}]*\}", "", step) for step in steps]

    assert sum("pip install" in step for step in steps) == 2
    assert [step for step in outside_braces if "||" in step or ";" in step] == []


def test_every_builder_takes_the_dockerfile() -> None:
    """`docker build` of Docker 20.10, which distributions have, does not use BuildKit."""
    assert (
        re.findall(r"(?:COPY|ADD|RUN) --(?!from=|chown=)\S+|<<\S+|^# syntax=.*", DOCKERFILE, re.MULTILINE)
        == []
    )


def test_the_image_leaves_out_nothing_that_runs() -> None:
    """The packages it skips are none that the package needs with the extras that its services and commands use."""
    (pattern,) = re.findall(r"grep -vE '([^']+)'", DOCKERFILE)
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    skipped = {pin.split("==")[0] for pin in pins if re.search(pattern, pin)}

    assert len(skipped) > 5
    assert (
        skipped
        & needed_by("pulsar-cleave", frozenset({"airflow", "pictures", "pulsar", "server", "spark"}), set())
        == set()
    )


def needed_by(package: str, extras: frozenset[str], seen: set[tuple[str, frozenset[str]]]) -> set[str]:
    """Names of everything that is installed because of the package."""
    if (package, extras) in seen:
        return set()
    seen.add((package, extras))
    found = {package}
    try:
        requirements = metadata.requires(package) or []
    except metadata.PackageNotFoundError:  # for another platform or another Python
        return found
    for text in requirements:
        requirement = Requirement(text)
        markers = [{"extra": extra} for extra in extras or {""}]
        if requirement.marker is None or any(requirement.marker.evaluate(marker) for marker in markers):
            name = re.sub(r"[-_.]+", "-", requirement.name).lower()
            found |= needed_by(name, frozenset(requirement.extras), seen)
    return found
