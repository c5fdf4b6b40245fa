"""A migrated database for each test, with the usual calls of the store on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.store_driver import StoreDriver


@pytest.fixture
def driver(database: str) -> Iterator[StoreDriver]:
    """A store on a fresh database, with the usual calls on it."""
    driver = StoreDriver(database)
    yield driver
    driver.store.dispose()
