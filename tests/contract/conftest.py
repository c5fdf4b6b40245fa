"""The data planes under test, one fixture each; every test of this directory runs on every one of them.

To add an adapter, add its name to `ADAPTERS` and a session fixture `<name>_planes` that yields its pair.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from controller.dataplane.base import SetWiseDataPlane
from controller.dataplane.embedded import EmbeddedDataPlane, EmbeddedLogClient
from controller.dataplane.pulsar.cluster_access import PulsarAccess
from controller.dataplane.pulsar.log_client import PulsarLogClient
from controller.dataplane.pulsar.plane import PulsarDataPlane
from controller.devstack.postgres import PostgresServer
from tests.support.brokers import SharedBroker
from tests.support.planes import Planes
from tests.support.pulsar_namespaces import make_namespace

ADAPTERS = ("embedded", pytest.param("pulsar", marks=pytest.mark.pulsar))


@pytest.fixture(scope="session")
def embedded_planes(postgres_server: PostgresServer, migrated_template: str) -> Iterator[Planes]:
    """Logs in a database of their own."""
    name = f"cleave_logs_{secrets.token_hex(4)}"
    url = postgres_server.create_database(name, template=migrated_template)
    planes = Planes(
        EmbeddedDataPlane(url, call_timeout_seconds=10.0), EmbeddedLogClient(url, call_timeout_seconds=10.0)
    )
    yield planes
    planes.close()
    postgres_server.drop_database(name)


@pytest.fixture(scope="session")
def pulsar_planes(pulsar_broker: SharedBroker) -> Iterator[Planes]:
    """Topics of a namespace of its own on a real broker, set as `cleave doctor --fix` sets it."""
    access = PulsarAccess(admin_url=pulsar_broker.admin_url, service_url=pulsar_broker.service_url)
    namespace = make_namespace(access, f"contract-{secrets.token_hex(4)}")
    planes = Planes(
        PulsarDataPlane(access, call_timeout_seconds=30.0),
        PulsarLogClient(access, call_timeout_seconds=30.0),
        namespace=namespace,
    )
    yield planes
    planes.close()


@pytest.fixture(params=ADAPTERS)
def planes(request: pytest.FixtureRequest) -> Iterator[Planes]:
    """One adapter after the other; readers a test leaves open are closed."""
    found: Planes = request.getfixturevalue(f"{request.param}_planes")
    yield found
    found.close_readers()


@pytest.fixture
def plane(planes: Planes) -> SetWiseDataPlane:
    """The plane under test, for calls about several logs; every plane takes such calls."""
    assert isinstance(planes.plane, SetWiseDataPlane)
    return planes.plane
