"""The `cleave` command in this process: what it printed, how it ended, and whether it changed anything."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import text

from controller.commands.cli import run
from controller.store.postgres.engine import Store
from tests.support.every_row import every_row
from tests.support.log_settings import logging_kept


@dataclass(frozen=True)
class Answer:
    """How one command ended."""

    code: int
    out: str
    err: str


class CommandLine:
    """Runs commands on one database. Every row of every table tells whether a command changed something."""

    def __init__(self, url: str, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.store = Store(url, application_name="tests")

    def __call__(self, *arguments: str) -> Answer:
        """Run it, however it ends."""
        self._capsys.readouterr()
        with logging_kept():
            code = run(list(arguments))
        said = self._capsys.readouterr()
        return Answer(code, said.out, said.err)

    def ok(self, *arguments: str) -> str:
        """Its table, when it did what was asked and had nothing to complain about."""
        answer = self(*arguments)
        assert (answer.code, answer.err) == (0, ""), answer.err
        return answer.out

    def json(self, *arguments: str) -> Any:
        """What `--json` prints, parsed."""
        return json.loads(self.ok(*arguments, "--json"))

    def refused(self, *arguments: str, code: int = 2) -> str:
        """Its one line on standard error, when it refused and changed nothing."""
        before = self.rows()
        answer = self(*arguments)
        assert (answer.code, answer.out) == (code, ""), answer.err
        assert answer.err.startswith("cleave: ")
        assert answer.err.count("\n") == 1
        assert self.rows() == before
        return answer.err

    def rehearsed(self, *arguments: str) -> str:
        """What `--dry-run` prints, when it changed nothing."""
        before = self.rows()
        said = self.ok(*arguments, "--dry-run")
        assert self.rows() == before
        return said

    def rows(self) -> dict[str, list[str]]:
        """Every row of every table, as text."""
        return every_row(self.store)

    def column(self, statement: str) -> list[Any]:
        """The first column of what it selects."""
        with self.store.transaction() as tx:
            return list(tx.execute(text(statement)).scalars())

    def execute(self, statement: str, **parameters: object) -> None:
        """Change rows by hand, as a test may."""
        with self.store.transaction() as tx:
            tx.execute(text(statement), parameters)
