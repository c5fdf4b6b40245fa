"""The embedded plane with a short call time-out, on a database of the test's own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from controller.dataplane.embedded import EmbeddedDataPlane, EmbeddedLogClient
from tests.support.planes import Planes

CALL_TIMEOUT_SECONDS = 0.5


@pytest.fixture
def planes(database: str) -> Iterator[Planes]:
    """See `Planes`."""
    planes = Planes(
        EmbeddedDataPlane(database, call_timeout_seconds=CALL_TIMEOUT_SECONDS),
        EmbeddedLogClient(database, call_timeout_seconds=CALL_TIMEOUT_SECONDS),
    )
    yield planes
    while planes.readers:
        planes.readers.pop().close()
    planes.logs.close()
    planes.plane.close()
