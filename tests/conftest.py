"""Fixtures every tier shares: one PostgreSQL per test process, a fresh migrated database per test, brokers, Spark.

Environment: ``CLEAVE_TEST_POSTGRES_URL`` names a server somebody else runs (superuser; databases are
made and dropped on it), and ``CLEAVE_TEST_POSTGRES_TEMPLATE`` a migrated database there to copy from;
``CLEAVE_TEST_POSTGRES_BIN`` names another PostgreSQL's ``bin`` directory. Brokers are
fetched with Maven: without it their tests are skipped, and fail where ``CI=true``.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from controller.devstack.postgres import FORGETFUL, EmbeddedPostgres, PostgresServer
from tests.support import brokers, drawn
from tests.support.quick_logins import make_logins_quick
from tests.support.scratch import scratch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Set, it makes every process that a test starts compile all its libraries anew. The Makefile takes it away as well.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Whoever runs tests side by side tells them the width of a terminal; what tests read is as wide as what is piped.
os.environ.pop("COLUMNS", None)
# gRPC reads this when it is imported, whichever test does so first; its handlers of forks end a child that is to become Spark's Java.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
_BROKERS = {"pulsar_broker", "pulsar5_broker", "pulsar_cluster"}
_BROKER_TIMEOUT_SECONDS = 900  # the first test that needs a broker may wait for its download and its start
_ONE_PROCESS_EACH = ("airflow", "spark", "browser")
"""A test has the group of the first that it is marked with: a group for each pair would start each server once more."""
_ON_SERVERS = ("integration", *_ONE_PROCESS_EACH, "pulsar")


def pytest_configure() -> None:
    """Hypothesis' own plugin reads its profile after this."""
    drawn.load_hypothesis_profile()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Of `--dist loadgroup`; see `rescheduling`."""
    from tests.support.rescheduling import Rescheduling

    return Rescheduling(config, log) if config.getoption("dist") == "loadgroup" else None


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what lies in tests/integration, and keep the tests of a heavy server in one worker."""
    for item in items:
        if "integration" in item.path.relative_to(item.config.rootpath).parts:
            item.add_marker(pytest.mark.integration)
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker(pytest.mark.drawn)
        if _BROKERS.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.pulsar)
        if item.get_closest_marker("pulsar") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(_BROKER_TIMEOUT_SECONDS))
        group = next(filter(item.get_closest_marker, _ONE_PROCESS_EACH), None)
        if group is not None:
            item.add_marker(pytest.mark.xdist_group(group))
        elif "pulsar5_broker" in getattr(
            item, "fixturenames", ()
        ):  # a minute's start that one worker waits for
            item.add_marker(pytest.mark.xdist_group("pulsar5"))
        if not any(map(item.get_closest_marker, _ON_SERVERS)):
            # `--reruns` of .ci/run is for servers that share two cores with others; the summary names each repeated test.
            item.add_marker(pytest.mark.flaky(reruns=0))


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """A running PostgreSQL; durable it is not."""
    url = os.environ.get("CLEAVE_TEST_POSTGRES_URL")
    if url:
        yield PostgresServer(url)
        return
    binaries = os.environ.get("CLEAVE_TEST_POSTGRES_BIN")
    server = EmbeddedPostgres(
        scratch(tmp_path_factory, "postgres"),
        settings=FORGETFUL,
        binaries=Path(binaries) if binaries else None,
    )
    try:
        server.start()
        make_logins_quick(server)
        yield server
    finally:
        server.destroy()


@pytest.fixture(scope="session")
def migrated_template(postgres_server: PostgresServer) -> Iterator[str]:
    """Name of a database with the current schema in it, to copy from; never connect to it."""
    from tests.support.migrated import migrate_to_pip483

    given = os.environ.get("CLEAVE_TEST_POSTGRES_TEMPLATE")
    if given:
        yield given
        return
    name = f"cleave_template_{secrets.token_hex(4)}"
    migrate_to_pip483(postgres_server.create_database(name))
    yield name
    postgres_server.drop_database(name)


@pytest.fixture
def database(postgres_server: PostgresServer, migrated_template: str) -> Iterator[str]:
    """URL (as the superuser) of a database with the current schema and no rows, for this test alone."""
    name = f"cleave_test_{secrets.token_hex(4)}"
    yield postgres_server.create_database(name, template=migrated_template)
    postgres_server.drop_database(name)


@pytest.fixture
def empty_database(postgres_server: PostgresServer) -> Iterator[str]:
    """URL (as the superuser) of a database with nothing in it, for this test alone."""
    name = f"cleave_empty_{secrets.token_hex(4)}"
    yield postgres_server.create_database(name)
    postgres_server.drop_database(name)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A classic local session in this process, ended with its JVM at the end; whoever asks for `MASTER` has it."""
    from tests.support.spark_session import local_session

    with local_session(tmp_path_factory.mktemp("spark")) as session:
        yield session


@pytest.fixture(scope="session")
def pulsar_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[brokers.SharedBroker]:
    """A running Pulsar 4.2.4 in one process, shared by the run; use namespaces of your own on it."""
    with brokers.shared_broker(brokers.STANDALONE, _room_of_the_run(tmp_path_factory)) as broker:
        yield broker


@pytest.fixture(scope="session")
def pulsar5_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[brokers.SharedBroker]:
    """A running Pulsar 5.0.0-M1, which has scalable topics, shared by the run."""
    with brokers.shared_broker(brokers.STANDALONE_5, _room_of_the_run(tmp_path_factory)) as broker:
        yield broker


@pytest.fixture(scope="session")
def pulsar_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[brokers.SharedBroker]:
    """Two running brokers of Pulsar 4.2.4 with the modular load manager, shared by the run."""
    with brokers.shared_broker(brokers.CLUSTER, _room_of_the_run(tmp_path_factory)) as broker:
        yield broker


def _room_of_the_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One directory for all processes of the run: xdist gives each worker a base directory below it."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
