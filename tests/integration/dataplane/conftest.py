"""The embedded plane on a database of the test's own, Cleave on a real Pulsar, and a broker that answers by a script."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.bootstrap import application
from controller.client.servers import Servers
from controller.dataplane.base import SetWiseDataPlane
from controller.dataplane.embedded import EmbeddedDataPlane, EmbeddedLogClient
from controller.dataplane.log_client import LogClient
from controller.dataplane.pulsar.cluster_access import PulsarAccess
from controller.devstack.serving import client_of, serving_worker
from tests.integration.dataplane.pulsar_setup import PulsarSetup
from tests.support.brokers import SharedBroker
from tests.support.command_line import CommandLine
from tests.support.planes import Planes
from tests.support.pulsar_namespaces import make_namespace
from tests.support.scripted_broker import ScriptedBroker, scripted_broker

PATIENT_SECONDS = 20.0
"""For a call on a busy machine."""


@pytest.fixture
def planes(database: str) -> Iterator[Planes]:
    """See `Planes`."""
    planes = Planes(
        EmbeddedDataPlane(database, call_timeout_seconds=PATIENT_SECONDS),
        EmbeddedLogClient(database, call_timeout_seconds=PATIENT_SECONDS),
    )
    yield planes
    planes.close()


@pytest.fixture
def plane(planes: Planes) -> SetWiseDataPlane:
    """The embedded one, for calls about several logs."""
    assert isinstance(planes.plane, SetWiseDataPlane)
    return planes.plane


@pytest.fixture
def setup(
    pulsar_broker: SharedBroker,
    database: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Iterator[PulsarSetup]:
    """See `PulsarSetup`; the environment tells where the database and the broker are, and nothing else."""
    access = PulsarAccess(admin_url=pulsar_broker.admin_url, service_url=pulsar_broker.service_url)
    for name in [name for name in os.environ if name.startswith("CLEAVE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CLEAVE_DATABASE_URL", database)
    monkeypatch.setenv("CLEAVE_PULSAR_ADMIN_URL", access.admin_url)
    monkeypatch.setenv("CLEAVE_PULSAR_SERVICE_URL", str(access.service_url))
    monkeypatch.setenv("CLEAVE_CALL_TIMEOUT_SECONDS", "25")  # a broker among other busy servers
    monkeypatch.setenv("CLEAVE_LANDING_URL", str(tmp_path / "landing"))
    monkeypatch.chdir(tmp_path)  # no .env of ours
    command_line = CommandLine(database, capsys)
    with application() as app:
        yield PulsarSetup(command_line, app, access, make_namespace(access, f"setup-{secrets.token_hex(4)}"))
    command_line.store.dispose()


@pytest.fixture
def servers(setup: PulsarSetup, database: str) -> Iterator[Servers]:
    """A client of a worker that does the setup's operations, and leads its topic."""
    with serving_worker(database, consumer_grace_seconds=20.0) as worker:
        servers = client_of(worker.address)
        yield servers
        servers.close()


@pytest.fixture
def logs(setup: PulsarSetup) -> Iterator[LogClient]:
    """The application's side of the plane."""
    logs = setup.app.log_client("pulsar")
    yield logs
    logs.close()


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    """See `ScriptedBroker`."""
    with scripted_broker() as broker:
        yield broker
