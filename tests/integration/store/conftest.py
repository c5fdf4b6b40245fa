"""Every store test drives its own migrated database."""

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
