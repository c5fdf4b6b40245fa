"""The wheel, installed as users install it, makes a database, runs a worker and carries messages between applications; with each extra.

The base is tried with every run, the extras by `make matrix`.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from controller.dataplane.pulsar.cluster_access import PulsarAccess
from controller.devstack.ports import LOOPBACK, free_port, release_port
from controller.devstack.process import ChildProcess
from tests.integration.dataplane.test_embedded import query
from tests.support.brokers import SharedBroker
from tests.support.pulsar_namespaces import make_namespace
from tests.support.wheels import PROJECT, build_wheel, install
from tests.unit.test_dependencies import OF_SERVERS, STARTS

METADATA = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
EXTRAS = sorted(set(METADATA["optional-dependencies"]) - {"client", "dev", "embedded", "pulsar", "server"})
"""Those that bring the extra `server`."""

_HELP_OF_EACH_COMMAND = """
import contextlib, io, json, typer
from controller.commands.cli import app, run
from controller.commands.command_list import Listed

def walk(command, path):
    yield path
    command = command.load() if isinstance(command, Listed) else command
    for name, one in getattr(command, "commands", {}).items():
        yield from walk(one, (*path, name))

helped = {}
for path in walk(typer.main.get_command(app), ()):
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        assert run([*path, "--help"]) == 0, path
    helped[" ".join(path)] = said.getvalue()
print(json.dumps(helped))
"""
_WHAT_AIRFLOW_IS_TOLD = """
import json
from importlib.metadata import distribution
from importlib.resources import files

[provider] = distribution("pulsar-cleave").entry_points.select(group="apache_airflow_provider")
told = provider.load()()
assert (files("cleave_provider") / "example_dags" / "example_cleave_acts.py").is_file()
print(json.dumps(told))
"""
_SEND_AND_RECEIVE = """
import sys
import pulsar_cleave as cleave

topic, address, token, user, password = sys.argv[1:]
login = cleave.EmbeddedAuth(user=user, password=password) if user else None
client = cleave.Client(address, token=token, embedded=login, call_timeout_seconds=25)
with client.producer(topic, name="checkout") as producer:
    for number in range(20):
        producer.send(b"%d" % number, key=f"customer-{number % 4}")
received = []
with client.stream_consumer(topic, "billing", name="reader", patience_seconds=60) as consumer:
    for message in consumer:
        received.append(int(message.value))
        consumer.acknowledge(message)
        if len(received) == 20:
            break
assert sorted(received) == list(range(20)), received
client.close()
"""
_IMPORTED_MODULES = "import sys; before = len(sys.modules); import pulsar_cleave; print(len(sys.modules) - before)"
_MEGABYTES = """
import compileall, sys
from importlib.metadata import distributions
from pathlib import Path

room = Path(sys.prefix) / "lib"
compileall.compile_dir(room, quiet=2)  # as pip does
total = sum(path.stat().st_size for path in room.rglob("*") if path.is_file())
before = sum(
    Path(file.locate()).stat().st_size
    for one in distributions()
    if one.metadata["Name"] in ("pulsar-client", "certifi")
    for file in one.files or ()
    if file.locate().is_file()
)
print((total - before) / 1e6)
"""


class Installed:
    """An environment with the wheel, run from a directory that has nothing in it."""

    def __init__(self, python: Path, nowhere: Path) -> None:
        self._bin = python.parent
        self._nowhere = nowhere

    def __call__(self, program: str, *arguments: str, **settings: str) -> str:
        """What the program prints; it must succeed."""
        done = subprocess.run(
            [self._bin / program, *arguments],
            cwd=self._nowhere,
            env=_env(settings),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    @contextmanager
    def worker(self, **settings: str) -> Iterator[None]:
        """A worker that runs meanwhile."""
        log = self._nowhere / "worker.log"
        child = ChildProcess([self._bin / "cleave", "worker"], log=log, cwd=self._nowhere, env=_env(settings))
        child.start()
        try:
            yield
            assert child.running, log.read_text()
        finally:
            child.stop()


def _env(settings: Mapping[str, str]) -> dict[str, str]:
    others = {key: value for key, value in os.environ.items() if not key.startswith(("CLEAVE_", "PYTHON"))}
    return {**others, **settings}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(
    scope="module",
    params=["server", *(pytest.param(extra, marks=pytest.mark.matrix) for extra in EXTRAS)],
)
def installed(
    request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> Installed:
    room = tmp_path_factory.mktemp("installed")
    (room / "nowhere").mkdir()
    return Installed(install(wheel, request.param, room / "home"), room / "nowhere")


def test_applications_are_checked_against_its_types(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as files:
        assert {"pulsar_cleave/py.typed", "cleave_provider/py.typed"} <= set(files.namelist())


def test_it_is_named_and_versioned_as_documented(installed: Installed) -> None:
    shown = installed(
        "python", "-c", "from importlib.metadata import version; print(version('pulsar-cleave'))"
    )

    assert shown.strip() == METADATA["version"]


def test_airflow_finds_the_provider_in_it(installed: Installed) -> None:
    told = json.loads(installed("python", "-c", _WHAT_AIRFLOW_IS_TOLD))

    assert told["package-name"] == METADATA["name"]
    assert [one["connection-type"] for one in told["connection-types"]] == ["cleave", "pulsar_admin"]


def test_each_command_says_what_it_does(installed: Installed) -> None:
    helped = json.loads(installed("python", "-c", _HELP_OF_EACH_COMMAND))

    assert len(helped) > 30
    assert installed("cleave", "--help") == helped[""]
    assert [path for path, text in helped.items() if "Usage: cleave" not in text] == []


def test_what_is_installed_for_it_can_be_imported(
    installed: Installed, request: pytest.FixtureRequest
) -> None:
    extra = request.node.callspec.params["installed"]
    modules = [*STARTS["server"], *STARTS.get(extra, [])]

    installed("python", "-c", "; ".join(f"import {module}" for module in modules))
    installed("python", "-c", "from controller.telemetry import get_logger; get_logger('x').info('a line')")


@pytest.fixture(scope="module")
def application(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """What `pip install pulsar-cleave[client]` gives."""
    room = tmp_path_factory.mktemp("application")
    (room / "nowhere").mkdir()
    return Installed(install(wheel, "client", room / "home"), room / "nowhere")


@pytest.fixture(scope="module")
def embedded_application(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """What `pip install pulsar-cleave[embedded]` gives."""
    room = tmp_path_factory.mktemp("embedded_application")
    (room / "nowhere").mkdir()
    return Installed(install(wheel, "embedded", room / "home"), room / "nowhere")


def test_the_client_imports_few_modules_and_is_small(application: Installed) -> None:
    assert int(application("python", "-c", _IMPORTED_MODULES)) <= 400
    assert float(application("python", "-c", _MEGABYTES)) <= 40


def test_an_application_gets_nothing_of_a_server(application: Installed) -> None:
    for module in OF_SERVERS:
        found = f"import importlib.util; print(importlib.util.find_spec({module!r}))"
        assert application("python", "-c", found).strip() == "None"
    with pytest.raises(AssertionError, match=r"pip install 'pulsar-cleave\[server\]'"):
        application("cleave", "--help")


def send_and_receive(
    installed: Installed,
    application: Installed,
    topic: str,
    plane: str,
    database: str,
    login: tuple[str, str] = ("", ""),
    **of_plane: str,
) -> None:
    """From an empty database to messages that were read by an application, which knows a worker and its own login only."""
    port, secret = free_port(), secrets.token_hex(32)
    of_cleave = {"CLEAVE_DATABASE_URL": database, **of_plane}
    serving = {"CLEAVE_API_SECRET": secret, "CLEAVE_SERVE_PORT": str(port)}
    installed("cleave", "migrate", **of_cleave)
    if login[0]:
        query(database, f"CREATE ROLE {login[0]} LOGIN PASSWORD '{login[1]}' IN ROLE cleave_client")
    try:
        with installed.worker(**of_cleave, **serving):
            installed(
                "cleave", "topics", "create", topic, "--segments", "2", "--data-plane", plane, **of_cleave
            )
            installed("cleave", "subscriptions", "create", topic, "billing", **of_cleave)
            token = installed("cleave", "token", topic, CLEAVE_API_SECRET=secret).strip()
            application("python", "-c", _SEND_AND_RECEIVE, topic, f"http://{LOOPBACK}:{port}", token, *login)
    finally:
        release_port(port)
        if login[0]:
            query(database, f"DROP ROLE {login[0]}")


def test_a_database_is_made_and_messages_come_back(
    installed: Installed, embedded_application: Installed, empty_database: str
) -> None:
    send_and_receive(
        installed,
        embedded_application,
        "acme/shop/orders",
        "embedded",
        empty_database,
        login=(f"shop_{secrets.token_hex(4)}", "pw"),
    )


@pytest.mark.matrix
def test_messages_come_back_from_a_pulsar_broker(
    wheel: Path, application: Installed, pulsar_broker: SharedBroker, empty_database: str, tmp_path: Path
) -> None:
    access = PulsarAccess(admin_url=pulsar_broker.admin_url, service_url=pulsar_broker.service_url)
    topic = f"{make_namespace(access, f'installed-{secrets.token_hex(4)}')}/orders"

    send_and_receive(
        Installed(install(wheel, "server,pulsar", tmp_path / "home"), tmp_path),
        application,
        topic,
        "pulsar",
        empty_database,
        CLEAVE_PULSAR_ADMIN_URL=access.admin_url,
        CLEAVE_PULSAR_SERVICE_URL=str(access.service_url),
        CLEAVE_CALL_TIMEOUT_SECONDS="25",
    )
