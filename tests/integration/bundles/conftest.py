"""A migrated database of the test's own, with the usual errands of the store on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.store_driver import StoreDriver


@pytest.fixture
def driver(database: str) -> Iterator[StoreDriver]:
    """A store on a fresh database, and the usual errands on it."""
    driver = StoreDriver(database)
    yield driver
    driver.store.dispose()
