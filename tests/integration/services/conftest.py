"""A store, the embedded data plane and shorthands for the operation services, on a database of the test's own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.bench import Bench


@pytest.fixture
def bench(database: str) -> Iterator[Bench]:
    """A topic's worth of tools; see `Bench`."""
    bench = Bench(database)
    yield bench
    bench.close()
