"""Every block of the pages about the client runs, in the page's order, against a worker and embedded logs.

A block that is marked `once` is left out: a test cannot run it, or the page shows it for comparison.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import shlex
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

import pulsar_cleave as cleave
from controller.devstack.serving import SECRET, serving_worker, token_for
from tests.support.bench import Bench
from tests.support.command_line import CommandLine

HOW_TO = Path(__file__).parents[3] / "docs" / "how-to"
PAGES = {
    "let-applications-reach-cleave.md": 3,
    "consume-from-an-application.md": 6,
    "store-results-exactly-once.md": 3,
    "handle-failing-messages.md": 3,
    "move-a-subscription.md": 1,
    "share-work-in-a-queue.md": 2,
    "read-from-checkpoints.md": 4,
    "use-asyncio.md": 2,
    "preforking-servers.md": 2,
    "coming-from-the-pulsar-client.md": 1,
}
"""Each page, and the minimum number of its blocks that run."""
CREATES_TOPIC = "let-applications-reach-cleave.md"
CREATE_SUBSCRIPTION = ("use-asyncio.md", "share-work-in-a-queue.md", "read-from-checkpoints.md")
"""Pages that create their subscription themselves."""
_BLOCK = re.compile(r"^```(sh|sql|python)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_ADDRESSES = re.compile(r"http://cleave-\d\.example\.org:8470(,http://cleave-\d\.example\.org:8470)*")
TOPIC = "acme/shop/orders"
TOPIC_WITH_SCHEMA = "acme/shop/drinks"
SENT = 6
"""Messages that are sent before each block."""


class HandlingBlock(Exception):
    """A block without an end of its own has handled what was sent."""


class Application:
    """The names that the pages leave to the application."""

    def __init__(self, database: str, worker: str, user: str) -> None:
        self.login = cleave.EmbeddedAuth(user=user, password="a password")
        self.client = cleave.Client(worker, token_for(), embedded=self.login, call_timeout_seconds=10.0)
        self.dsn = database.replace("postgresql+psycopg2", "postgresql")
        self.seen: list[Any] = []
        self.ends_by_itself = True
        self.kept: dict[str, bytes] = {}

    @property
    def names(self) -> dict[str, Any]:
        return {
            "client": self.client,
            "cleave": cleave,
            "token": token_for(),
            "jwt": "a.b.c",
            "stopping": lambda: len(self.seen) >= SENT,
            "stopping_event": Stopping(self),
            "handle": lambda _key, value: self.see(value),
            "handle_message": lambda message: self.see(message.value),
            "index": lambda _key, value: self.see(value),
            "send_mail": self.send_mail,
            "load_checkpoint": lambda: self.kept.get("alone"),
            "save_checkpoint": lambda value: self.kept.update(alone=value),
            "save_member_checkpoint": lambda name, value: self.kept.update({name: value}),
            "stored_values": lambda _group: [value for name, value in self.kept.items() if name != "alone"],
            "application_dsn": self.dsn,
            "write_result": self.write_result,
            "TemporaryError": TemporaryError,
            "preload_app": False,
        }

    def see(self, value: Any) -> None:
        self.seen.append(value)
        if not self.ends_by_itself and len(self.seen) >= SENT:
            raise HandlingBlock

    def send_mail(self, value: bytes) -> Any:
        """For the queue's page, and awaited for that of asyncio."""
        self.see(value)
        return asyncio.sleep(0) if _is_in_a_loop() else None

    def write_result(self, cursor: Any, message: cleave.Message) -> None:
        if message.data == b"bad":
            self.see(message)
            raise ValueError("no order")
        cursor.execute(
            "INSERT INTO result (key, value, published_at) VALUES (%s, %s, %s)",
            (message.key, message.value, message.publish_time),
        )
        self.see(message)


class Stopping:
    """An event that is set when the messages that were sent are handled."""

    def __init__(self, application: Application) -> None:
        self._application = application

    async def wait(self) -> None:
        while len(self._application.seen) < SENT:
            await asyncio.sleep(0.01)


class TemporaryError(Exception):
    """An error of the application's own."""


def _is_in_a_loop() -> bool:
    with suppress(RuntimeError):
        return asyncio.get_running_loop() is not None
    return False


@pytest.fixture
def user() -> str:
    return f"shop_{secrets.token_hex(4)}"


@pytest.fixture
def worker(database: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, user: str) -> Iterator[str]:
    """Where a worker serves; the environment and the directory are those of the operator who types commands."""
    monkeypatch.setenv("CLEAVE_DATABASE_URL", database)
    monkeypatch.setenv("CLEAVE_API_SECRET", SECRET)
    monkeypatch.chdir(tmp_path)
    bench = Bench(database)
    with serving_worker(database) as serving:
        yield serving.address
    with bench.store.transaction() as tx:
        tx.execute(text(f"DROP ROLE IF EXISTS {user}"))
    bench.close()


def blocks(page: str) -> list[tuple[str, str]]:
    return _BLOCK.findall((HOW_TO / page).read_text())


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_the_page_runs(
    page: str,
    database: str,
    worker: str,
    user: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commands = CommandLine(database, capsys)
    application = Application(database, worker, user)
    monkeypatch.setenv("CLEAVE_TOKEN", token_for())
    monkeypatch.setenv("SHOP_PASSWORD", "a password")
    if page != CREATES_TOPIC:
        commands.ok("topics", "create", TOPIC)
        commands.ok("topics", "create", TOPIC_WITH_SCHEMA)
        with commands.store.transaction() as tx:
            tx.execute(text(f"CREATE ROLE {user} LOGIN PASSWORD 'a password' IN ROLE cleave_client"))
        if page not in CREATE_SUBSCRIPTION:
            commands.ok("subscriptions", "create", TOPIC, "billing")
    names = application.names

    ran = 0
    for kind, body in blocks(page):
        body = _ADDRESSES.sub(
            worker, body.replace("ROLE shop", f"ROLE {user}").replace('"shop"', f'"{user}"')
        )
        ran += 1
        if kind == "sql":
            with commands.store.transaction() as tx:
                tx.execute(text(body))
        elif kind == "sh":
            run_commands(commands, body)
        elif "def post_fork" not in body:  # gunicorn's, which imports the block after it
            run_block(application, names, body, page)
    for client in (application.client, names["client"]):  # the page may make its own
        client.close()
    commands.store.dispose()

    assert ran >= PAGES[page]


def run_commands(commands: CommandLine, body: str) -> None:
    for line in body.splitlines():
        name, *arguments = shlex.split(line, comments=True)
        assert name == "cleave", line
        commands.ok(*arguments)


def run_block(application: Application, names: dict[str, Any], body: str, page: str) -> None:
    """Run a block after messages were sent, unless it produces only, or makes the client."""
    application.seen.clear()
    application.ends_by_itself = "stopping" in body or "def write_result" in body
    if "coming-from" in page:
        body = body.replace("pulsar=cleave.PulsarAuth(token=jwt)", "embedded=login")
        names["login"] = application.login
    reads = any(word in body for word in ("_consumer(", "keyed_work(", "dead_letters("))
    if reads:
        with application.client.producer(TOPIC) as producer:
            for number in range(SENT):
                producer.send(b"%d" % number, key=f"k{number % 3}")
    if "client.dead_letters(" in body:
        put_away(application)
    with suppress(HandlingBlock):
        exec(compile(body, page, "exec"), names)
    if "def start" in body:
        names["start"]()
        names["producer"].send(b"from a worker of the server")
        names["stop"]()
    if reads and "client.dead_letters(" not in body:
        assert len(application.seen) >= 1, body


def put_away(application: Application) -> None:
    """Make a dead letter."""
    failed = threading.Event()

    def fail(_message: cleave.Message) -> None:
        failed.set()
        raise ValueError("no such account")

    with application.client.keyed_work(
        TOPIC, "billing", fail, name="billing-1", dead_letters=True, max_deliveries=1
    ) as work:
        work.run(failed.is_set)
