"""The identity of a database: another one after each event that may have taken the journal back in time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from controller.devstack.postgres import FORGETFUL, EmbeddedPostgres, PostgresServer
from controller.store.postgres.engine import Store
from controller.store.postgres.migrations import migrate
from tests.support.quick_logins import make_logins_quick

IDENTITY = "SELECT cleave.database_identity()"


def value(url: str, statement: str = IDENTITY) -> object:
    """What the statement answers on a connection of its own."""
    store = Store(url, pool_size=1)
    try:
        with store.transaction() as tx:
            return tx.execute(text(statement)).scalar_one()
    finally:
        store.dispose()


def test_a_database_has_one_identity(database: str) -> None:
    assert value(database) == value(database)


def test_a_copy_of_the_database_is_another_one(database: str, postgres_server: PostgresServer) -> None:
    copy = postgres_server.create_database("cleave_copy_of_identity", template=database.rpartition("/")[2])
    try:
        assert value(copy) != value(database)
    finally:
        postgres_server.drop_database("cleave_copy_of_identity")


def test_a_restore_into_the_same_database_makes_another_one(database: str) -> None:
    """It writes the table of the topics into another file."""
    before = value(database)
    value(database, "CLUSTER cleave.topic USING topic_pkey; SELECT 1")

    assert value(database) != before


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    """A server that may be restarted."""
    with EmbeddedPostgres(tmp_path / "postgres", settings=FORGETFUL) as server:
        make_logins_quick(server)
        yield server
        server.destroy()


def test_after_a_restart_and_after_a_promotion_it_is_another_one(server: EmbeddedPostgres) -> None:
    """A server that is promoted goes on without a restart."""
    url = server.create_database("journal")
    migrate(url)
    found = [value(url)]
    server.stop()
    server.start()
    found.append(value(server.url("journal")))
    server.stop()
    (server.room / "data" / "standby.signal").touch()
    server.start()
    found.append(value(server.url("journal")))
    value(server.url("journal"), "SELECT pg_promote(true, 60)")
    found.append(value(server.url("journal")))

    assert len({*found}) == 4
