"""A client of the worker that a module's `address` names."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from controller.client.servers import Servers
from controller.devstack.serving import client_of


@pytest.fixture
def servers(address: str) -> Iterator[Servers]:
    """It may consume every topic."""
    servers = client_of(address)
    yield servers
    servers.close()
