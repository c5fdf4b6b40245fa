"""The application of the pages when the stored connection changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest

from controller.bootstrap import Application
from controller.domain.errors import InvalidInput
from controller.pages.context import PageContext


class Connection:
    """The stored connection, which a person edits."""

    def __init__(self) -> None:
        self.extras: dict[str, Any] = {}
        self.context = PageContext(lambda: {"dsn": "postgresql://a@127.0.0.1:1/b", "extras": self.extras})

    def application_with(self, **extras: Any) -> Application:
        """The application after the edit."""
        self.extras = extras
        return self.context.application()


@pytest.fixture
def connection() -> Iterator[Connection]:
    connection = Connection()
    yield connection
    connection.context.close()


def plane_of(application: Application) -> Mock:
    """The only data plane of the application from now on."""
    plane = Mock()
    application.__dict__["planes"] = {"embedded": plane}
    return plane


def test_a_replaced_application_serves_the_requests_that_have_it(connection: Connection) -> None:
    first = plane_of(connection.application_with(worker_shards=1))
    second = plane_of(connection.application_with(worker_shards=2))
    assert first.close.call_count == 0

    connection.application_with(worker_shards=3)
    assert (first.close.call_count, second.close.call_count) == (1, 0)

    connection.context.close()
    assert (first.close.call_count, second.close.call_count) == (1, 1)


def test_after_an_invalid_edit_the_application_is_open_as_before(connection: Connection) -> None:
    application = connection.application_with(worker_shards=1)
    plane = plane_of(application)

    with pytest.raises(InvalidInput):
        connection.application_with(worker_shards="many")

    assert connection.application_with(worker_shards=1) is application
    assert plane.close.call_count == 0
