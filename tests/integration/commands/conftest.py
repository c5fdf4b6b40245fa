"""The command line on a database of the test's own."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import make_url, text

from controller.landing.history import RateHistory
from tests.support.command_line import CommandLine
from tests.support.over_http import OverHttp, serving
from tests.support.recorded import keep_rates
from tests.support.reports import milliseconds

TOPIC = "acme/shop/orders"
SINCE = datetime.now(UTC).replace(second=0, microsecond=0) + timedelta(hours=1)
UNTIL = SINCE + timedelta(hours=1)
SPAN = ("--from", SINCE.isoformat(), "--to", UNTIL.isoformat())
"""Of the load of `recorded`: to come, since nothing is recorded of a topic before it is there."""


@pytest.fixture
def cleave(
    database: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[CommandLine]:
    """`cleave`, told by the environment where its database is, and nothing else."""
    for name in [name for name in os.environ if name.startswith("CLEAVE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CLEAVE_DATABASE_URL", database)
    monkeypatch.setenv("CLEAVE_LANDING_URL", str(tmp_path / "landing"))
    monkeypatch.setenv("USER", "ada")
    monkeypatch.chdir(tmp_path)  # no .env of ours
    command_line = CommandLine(database, capsys)
    yield command_line
    command_line.store.dispose()


@pytest.fixture
def orders(cleave: CommandLine) -> str:
    """A topic of two segments, 0 and 1."""
    cleave.ok("topics", "create", TOPIC, "--segments", "2")
    return TOPIC


@pytest.fixture
def reader(cleave: CommandLine, database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A login in role cleave_inspector, which from here on the commands use."""
    name = f"reader_{secrets.token_hex(4)}"
    cleave.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'pw' IN ROLE cleave_inspector")
    url = make_url(database).set(username=name, password="pw").render_as_string(hide_password=False)
    monkeypatch.setenv("CLEAVE_DATABASE_URL", url)
    yield name
    cleave.execute(f"DROP ROLE {name}")


@pytest.fixture
def server(cleave: CommandLine, database: str, tmp_path: Path) -> Iterator[str]:
    """The address of `cleave serve`, a process on the same database; no worker is up."""
    with serving(database, tmp_path) as address:
        yield address


@pytest.fixture
def http(
    cleave: CommandLine, server: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> OverHttp:
    """`cleave` over HTTP."""
    return OverHttp(cleave, capsys, monkeypatch, server)


@pytest.fixture
def recorded(cleave: CommandLine, orders: str, tmp_path: Path) -> str:
    """A topic with an hour of load behind it: hot in the middle."""
    with cleave.store.transaction() as tx:
        topic_id = tx.execute(text("SELECT topic_id FROM inspect.topics")).scalar_one()
    history = RateHistory(f"{tmp_path / 'landing'}-history")
    for minute in range(1, 61):
        rate = 22_000.0 if 20 < minute < 40 else 2_000.0
        keep_rates(
            history,
            milliseconds(SINCE) + minute * 60_000,
            {(topic_id, 0): rate, (topic_id, 1): rate},
        )
    return orders
