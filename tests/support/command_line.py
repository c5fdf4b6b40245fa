"""The `cleave` command in this process: its output, its exit code, and whether it changed anything."""

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
    """Output and exit code of one command."""

    code: int
    out: str
    err: str


class CommandLine:
    """Runs commands on one database. All rows of all tables show whether a command changed something."""

    def __init__(self, url: str, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.store = Store(url, application_name="tests")

    def __call__(self, *arguments: str) -> Answer:
        """Run the command and return its answer, whatever its exit code."""
        self._capsys.readouterr()
        with logging_kept():
            code = run(list(arguments))
        captured = self._capsys.readouterr()
        return Answer(code, captured.out, captured.err)

    def ok(self, *arguments: str) -> str:
        """Return the output of a command that must succeed without a message."""
        answer = self(*arguments)
        assert (answer.code, answer.err) == (0, ""), answer.err
        return answer.out

    def json(self, *arguments: str) -> Any:
        """Return the parsed output with `--json`."""
        return json.loads(self.ok(*arguments, "--json"))

    def refused(self, *arguments: str, code: int = 2) -> str:
        """Return the one line on standard error of a command that must fail and change nothing."""
        before = self.rows()
        answer = self(*arguments)
        assert (answer.code, answer.out) == (code, ""), answer.err
        assert answer.err.startswith("cleave: ")
        assert answer.err.count("\n") == 1
        assert self.rows() == before
        return answer.err

    def rehearsed(self, *arguments: str) -> str:
        """Return the output with `--dry-run` of a command that must change nothing."""
        before = self.rows()
        output = self.ok(*arguments, "--dry-run")
        assert self.rows() == before
        return output

    def rows(self) -> dict[str, list[str]]:
        """Return every row of every table, as text."""
        return every_row(self.store)

    def column(self, statement: str) -> list[Any]:
        """Return the first column of the selected rows."""
        with self.store.transaction() as tx:
            return list(tx.execute(text(statement)).scalars())

    def execute(self, statement: str, **parameters: object) -> None:
        """Change rows directly, in a transaction."""
        with self.store.transaction() as tx:
            tx.execute(text(statement), parameters)
