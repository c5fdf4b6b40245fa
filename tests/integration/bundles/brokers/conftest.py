"""Two staged brokers for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.bundle_brokers import Bench, staged_bench


@pytest.fixture
def bench() -> Iterator[Bench]:
    with staged_bench() as bench:
        yield bench
