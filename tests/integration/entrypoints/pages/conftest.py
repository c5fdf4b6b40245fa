"""The pages on the bench's database, asked as a browser asks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, event

from controller.entrypoints.pages.app import pages_app
from controller.entrypoints.pages.desk import Desk
from tests.support.app_client import AppClient
from tests.support.bench import Bench


@pytest.fixture
def pages(bench: Bench) -> Iterator[AppClient]:
    """Mounted nowhere, so that links begin with a slash."""
    desk = Desk(lambda: {"dsn": bench.url, "extras": {}})
    yield AppClient(pages_app(desk))
    desk.close()


@pytest.fixture
def asked() -> Iterator[list[str]]:
    """Every statement that any engine sends, as it is sent."""
    found: list[str] = []

    def hear(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        found.append(statement)

    event.listen(Engine, "before_cursor_execute", hear)
    yield found
    event.remove(Engine, "before_cursor_execute", hear)
