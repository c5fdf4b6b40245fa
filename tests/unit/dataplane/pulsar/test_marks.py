"""Each reader of a client has a mark of its own, whoever opens it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from controller.dataplane.pulsar.cluster_access import PulsarAccess
from controller.dataplane.pulsar.log_client import PulsarLogClient


@pytest.fixture
def client() -> Iterator[PulsarLogClient]:
    """Of a broker that nobody asks."""
    client = PulsarLogClient(PulsarAccess(admin_url="http://127.0.0.1:1", service_url="pulsar://127.0.0.1:1"))
    yield client
    client.close()


def test_marks_of_readers_that_are_opened_at_once_differ(client: PulsarLogClient) -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as threads:
            found = list(threads.map(lambda _: [client._new_mark() for _ in range(2_000)], range(8)))
    finally:
        sys.setswitchinterval(before)
    marks = [mark for some in found for mark in some]
    assert len(set(marks)) == len(marks) == 16_000
