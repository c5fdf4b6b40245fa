"""The `cleave` command with a server named: what it prints is to be what it prints beside the database."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from controller.bootstrap import application, build_server
from controller.devstack.ports import free_port, release_port
from controller.devstack.process import ChildProcess
from controller.devstack.serving import SECRET, token_of
from controller.services.worker.worker import running
from controller.settings import Settings
from controller.web.access import Role
from controller.web.server import WebServer
from tests.support.cleave_process import cleave_process
from tests.support.command_line import Answer, CommandLine
from tests.support.every_row import every_row
from tests.support.waiting import wait_until

START_SECONDS = 90.0
"""On a busy machine."""
NO_DATABASE = "postgresql://nobody@127.0.0.1:1/none"
"""Nobody listens there, so that a command which asks it fails."""


@contextmanager
def serving(database: str, directory: Path, **settings: object) -> Iterator[str]:
    """The address of what `cleave serve` runs, in threads of this process; no worker is up.

    A process of its own takes four seconds of a core to start: `server_process` is for tests of the process.
    """
    given = _settings(database_url=database, landing_url=directory / "landing", **settings)
    limit = given.worker_statement_seconds
    with application(given, name="cleave-serve", statement_seconds=limit) as app:
        web = WebServer(given, SECRET)
        with running(build_server(app, web), threading.Event()):
            yield web.address


def _settings(**given: object) -> Settings:
    """Those of a server: read from the environment, as its process does, where the command's own are left out."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("CLEAVE_")]:
            patch.delenv(name)
        for name, value in {"api_secret": SECRET, **given}.items():
            patch.setenv(f"CLEAVE_{name.upper()}", str(value))
        return Settings()


@contextmanager
def server_process(database: str, directory: Path, **settings: object) -> Iterator[tuple[ChildProcess, str]]:
    """`cleave serve` with its address: a process that may be killed, and started again there."""
    port, log = free_port(), directory / "serve.log"
    process = cleave_process(
        "serve",
        log=log,
        database_url=database,
        api_secret=SECRET,
        serve_port=port,
        landing_url=directory / "landing",
        **settings,
    )
    process.start()
    try:
        wait_until(lambda: "serving" in log.read_text(), timeout_seconds=START_SECONDS, message="it serves")
        yield process, f"http://127.0.0.1:{port}"
    finally:
        process.stop()
        release_port(port)


class OverHttp(CommandLine):
    """Asks a server, as an administrator called ada; has no database that it could ask."""

    def __init__(
        self, direct: CommandLine, capsys: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch, server: str
    ) -> None:
        self.store, self._capsys, self._patch = direct.store, capsys, patch
        self.settings = {
            "CLEAVE_API_URL": server,
            "CLEAVE_API_TOKEN": token_of(Role.ADMIN, subject="ada"),
            "CLEAVE_DATABASE_URL": NO_DATABASE,
        }

    def __call__(self, *arguments: str) -> Answer:
        """See `CommandLine`."""
        with self._patch.context() as patch:
            for name, value in self.settings.items():
                patch.setenv(name, value)
            return super().__call__(*arguments)

    def call(self, method: str, path: str, document: object, key: str | None = None) -> Any:
        """The answer's document, of a call as any program makes it."""
        headers = {"Authorization": f"Bearer {self.settings['CLEAVE_API_TOKEN']}"}
        if key is not None:
            headers["Idempotency-Key"] = key
        url = f"{self.settings['CLEAVE_API_URL']}{path}"
        answer = httpx.request(method, url, json=document, headers=headers, timeout=90.0)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def rows(self) -> dict[str, list[str]]:
        """See `CommandLine`; without the audit, which tells of what was refused and rehearsed, too."""
        return every_row(self.store, but={"cleave.audit"})
