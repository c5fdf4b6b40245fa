"""The `cleave` command with a server named: what it prints is to be what it prints beside the database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from controller.devstack.ports import free_port, release_port
from controller.devstack.serving import SECRET, token_of
from controller.entrypoints.web.access import Role
from tests.support.cleave_process import cleave_process
from tests.support.command_line import Answer, CommandLine
from tests.support.every_row import every_row
from tests.support.waiting import wait_until

NO_DATABASE = "postgresql://nobody@127.0.0.1:1/none"
"""Nobody listens there, so that a command which asks it fails."""


@contextmanager
def serving(database: str, directory: Path, **settings: object) -> Iterator[str]:
    """The address of `cleave serve`, a process on the database; no worker is up."""
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
        wait_until(lambda: "serving" in log.read_text(), message="it serves")
        yield f"http://127.0.0.1:{port}"
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

    def rows(self) -> dict[str, list[str]]:
        """See `CommandLine`; without the audit, which tells of what was refused and rehearsed, too."""
        return every_row(self.store, but={"cleave.audit"})
