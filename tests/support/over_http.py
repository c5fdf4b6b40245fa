"""The `cleave` command with a server named: its output must equal the output next to the database."""

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
    """Run what `cleave serve` runs, in threads of this process until the end of the block, and yield its address; no worker runs.

    A process takes four seconds of a core to start: `server_process` is for tests of the process.
    """
    server_settings = _settings(database_url=database, landing_url=directory / "landing", **settings)
    limit = server_settings.worker_statement_seconds
    with application(server_settings, name="cleave-serve", statement_seconds=limit) as app:
        web = WebServer(server_settings, SECRET)
        with running(build_server(app, web), threading.Event()):
            yield web.address


def _settings(**overrides: object) -> Settings:
    """Return the settings of a server: read from the environment, as its process does, without the command's own."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("CLEAVE_")]:
            patch.delenv(name)
        for name, value in {"api_secret": SECRET, **overrides}.items():
            patch.setenv(f"CLEAVE_{name.upper()}", str(value))
        return Settings()


@contextmanager
def server_process(database: str, directory: Path, **settings: object) -> Iterator[tuple[ChildProcess, str]]:
    """Run `cleave serve` as a process until the end of the block, and yield the process and its address; a test may kill it and start it
    again there.
    """
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
    """Runs commands on a server, as the administrator `ada`; the commands have no database."""

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
        """Run the command with the settings of the server, and return its answer."""
        with self._patch.context() as patch:
            for name, value in self.settings.items():
                patch.setenv(name, value)
            return super().__call__(*arguments)

    def call(self, method: str, path: str, document: object, key: str | None = None) -> Any:
        """Return the document that answers a call, sent as any program sends it."""
        headers = {"Authorization": f"Bearer {self.settings['CLEAVE_API_TOKEN']}"}
        if key is not None:
            headers["Idempotency-Key"] = key
        url = f"{self.settings['CLEAVE_API_URL']}{path}"
        answer = httpx.request(method, url, json=document, headers=headers, timeout=90.0)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def rows(self) -> dict[str, list[str]]:
        """Return every row of every table, without the audit, which also records refusals and dry runs."""
        return every_row(self.store, but={"cleave.audit"})
