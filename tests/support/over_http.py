"""The `cleave` command with a server named: what it prints is to be what it prints beside the database."""

from __future__ import annotations

import pytest

from controller.devstack.serving import token_of
from controller.entrypoints.web.access import Role
from tests.support.command_line import Answer, CommandLine
from tests.support.every_row import every_row

NO_DATABASE = "postgresql://nobody@127.0.0.1:1/none"
"""Nobody listens there, so that a command which asks it fails."""


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
