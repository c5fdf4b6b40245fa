"""Questions about a topic on a database of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.bench import Bench


@pytest.fixture
def bench(database: str) -> Iterator[Bench]:
    """Store, plane and shorthands on the test's database."""
    bench = Bench(database)
    yield bench
    bench.close()
