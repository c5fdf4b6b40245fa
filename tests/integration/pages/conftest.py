"""The pages on the bench's database, asked as a browser asks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from controller.pages.app import pages_app
from controller.pages.context import PageContext
from tests.support.app_client import AppClient
from tests.support.bench import Bench
from tests.support.statements import statements_sent


@pytest.fixture
def pages(bench: Bench) -> Iterator[AppClient]:
    """Mounted nowhere, so that links begin with a slash."""
    context = PageContext(lambda: {"dsn": bench.url, "extras": {}})
    yield AppClient(pages_app(context))
    context.close()


@pytest.fixture
def sent_statements() -> Iterator[list[str]]:
    """Every statement that any engine sends, as it is sent."""
    with statements_sent() as sent:
        yield sent
