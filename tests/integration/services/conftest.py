"""A store, the embedded data plane and shorthands for the operation services, on a database of the test's own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from controller.devstack.postgres import PostgresServer
from tests.support.bench import Bench
from tests.support.led_topic import LedTopic
from tests.support.older_journal import Backups


@pytest.fixture
def backups(bench: Bench, postgres_server: PostgresServer) -> Iterator[Backups]:
    """Copies of the bench's journal, dropped at the end."""
    backups = Backups(postgres_server, bench, [])
    yield backups
    bench.store.dispose()
    backups.remove()


@pytest.fixture
def led_topic(bench: Bench) -> Iterator[LedTopic]:
    """See `LedTopic`."""
    led_topic = LedTopic(bench)
    yield led_topic
    led_topic.stop()
