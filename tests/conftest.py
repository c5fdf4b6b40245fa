"""Fixtures every tier shares: one PostgreSQL per test process, and a fresh migrated database per test.

Environment: ``CLEAVE_TEST_POSTGRES_URL`` names a server somebody else runs (superuser; databases are
made and dropped on it); ``CLEAVE_TEST_POSTGRES_BIN`` another PostgreSQL's ``bin`` directory.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.devstack.postgres import FORGETFUL, EmbeddedPostgres, PostgresServer

_ONE_PROCESS_EACH = ("spark", "airflow", "browser")  # a second JVM or Airflow would only slow both


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what lies in tests/integration, and keep the tests of a heavy server in one worker."""
    for item in items:
        if "integration" in item.path.relative_to(item.config.rootpath).parts:
            item.add_marker(pytest.mark.integration)
        for name in _ONE_PROCESS_EACH:
            if item.get_closest_marker(name):
                item.add_marker(pytest.mark.xdist_group(name))


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """A running PostgreSQL; durable it is not."""
    url = os.environ.get("CLEAVE_TEST_POSTGRES_URL")
    if url:
        yield PostgresServer(url)
        return
    binaries = os.environ.get("CLEAVE_TEST_POSTGRES_BIN")
    server = EmbeddedPostgres(
        tmp_path_factory.mktemp("postgres"),
        settings=FORGETFUL,
        binaries=Path(binaries) if binaries else None,
    )
    try:
        server.start()
        yield server
    finally:
        server.destroy()


@pytest.fixture(scope="session")
def migrated_template(postgres_server: PostgresServer) -> Iterator[str]:
    """Name of a database with the current schema in it, to copy from; never connect to it."""
    from controller.store.migrations import migrate

    name = f"cleave_template_{secrets.token_hex(4)}"
    migrate(postgres_server.create_database(name))
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
