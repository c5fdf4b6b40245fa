"""Every store test drives its own migrated database."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from controller.devstack.postgres import FORGETFUL, EmbeddedPostgres, PostgresServer
from tests.support.scratch import scratch
from tests.support.store_driver import StoreDriver


@pytest.fixture
def driver(database: str) -> Iterator[StoreDriver]:
    """A store on a fresh database, and the usual errands on it."""
    driver = StoreDriver(database)
    yield driver
    driver.store.dispose()


@pytest.fixture
def pristine_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """A server on which the roles of Cleave were never made."""
    server = EmbeddedPostgres(scratch(tmp_path_factory, "pristine"), settings=FORGETFUL)
    try:
        server.start()
        yield server
    finally:
        server.destroy()
