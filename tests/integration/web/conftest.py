"""The topic that a module names, and a client of the worker at its `address`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from controller.client.servers import Servers
from controller.devstack.serving import client_of
from tests.support.bench import Bench
from tests.support.session_readers import Joining, Reader


@pytest.fixture
def bench(bench: Bench, request: pytest.FixtureRequest) -> Bench:
    """With a topic and its subscription, if the module has the number of the topic's segments as `SEGMENTS`."""
    segments = getattr(request.module, "SEGMENTS", None)
    if segments is not None:
        bench.topic_with(segments=segments)
    return bench


@pytest.fixture
def servers(address: str) -> Iterator[Servers]:
    """It may consume every topic."""
    servers = client_of(address)
    yield servers
    servers.close()


@pytest.fixture
def join(servers: Servers) -> Iterator[Joining]:
    """Begins sessions, which end with the test."""
    with ExitStack() as ends:

        def begin(name: str) -> Reader:
            reader = Reader(servers, name)
            ends.callback(reader.session.close)
            return reader

        yield begin
