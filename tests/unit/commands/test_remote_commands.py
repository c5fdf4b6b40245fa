"""Each verb of `cleave`, and whether it goes over HTTP: a new one is to be put here, and thought about."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer

from controller.actions.action import all_actions
from controller.commands.cli import app, run
from controller.commands.command_list import Listed
from controller.commands.remote_commands import BOTH_WAYS, NEITHER_WAY
from tests.support.log_settings import logging_kept

DATABASE_ONLY = {
    "consumers register",
    "consumers unregister",
    "bundles draw",
    *(f"bundles {verb}" for verb in ("collect", "aggregate", "propose", "apply")),
    "migrate",
    "worker",
    "metrics",
    "traces",
    "serve",
    "collect",
    "doctor",
}
"""They need what a server does not answer, or the machine itself."""
_VALUES = {"to": "dry-run"}
"""Of arguments that take no "1"."""


def verbs(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Those of a command: itself, or of a noun its verbs, and itself where it answers without one."""
    below = getattr(command, "commands", {})
    if not below or command.invoke_without_command:
        yield name, command
    for verb, one in below.items():
        yield from verbs(one, f"{name} {verb}")


def commands() -> Iterator[tuple[str, Any]]:
    """Every verb of the program, with its command."""
    listed = typer.main.get_command(app).commands
    assert all(isinstance(one, Listed) for one in listed.values())
    for name, one in listed.items():
        yield from verbs(one.load(), name)


def test_each_verb_is_classified_once() -> None:
    listed = [*BOTH_WAYS, *NEITHER_WAY, *DATABASE_ONLY]
    generated = [verb for verb, command in commands() if hasattr(command.callback, "is_generated")]

    assert sorted(verb for verb, _ in commands()) == sorted([*listed, *generated])
    assert {action.name for action in all_actions() if action.is_command} <= {*generated}


@pytest.mark.parametrize("verb", sorted(DATABASE_ONLY))
def test_a_verb_that_needs_the_database_says_so_where_a_server_is_named(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CLEAVE_API_URL", raising=False)
    command = next(command for name, command in commands() if name == verb)
    needed = [
        word
        for one in command.params
        if one.required
        for word in ((one.opts[0],) if one.opts[0].startswith("-") else ()) + (_VALUES.get(one.name, "1"),)
    ]
    with logging_kept():
        code = run(["--api-url", "http://127.0.0.1:1", *verb.split(), *needed])

    said = capsys.readouterr().err
    assert (code, said.count("\n")) == (2, 1), said
    assert said.startswith(f"cleave: `cleave {verb}` needs the database and the machine")
    assert "unset CLEAVE_API_URL, leave out --api-url, and set CLEAVE_DATABASE_URL" in said


@pytest.mark.parametrize(
    ("line", "option"),
    [
        ("backtest --trace load.csv", "backtest --trace"),
        ("backtest --engine spark", "backtest --engine"),
        ("backtest --html report.html", "backtest --html"),
        ("decisions replay --all a --from-history", "decisions replay --from-history"),
    ],
)
def test_an_option_that_needs_the_database_says_so_where_a_server_is_named(
    line: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with logging_kept():
        code = run(["--api-url", "http://127.0.0.1:1", *line.split()])

    said = capsys.readouterr().err
    assert (code, said.count("\n")) == (2, 1), said
    assert said.startswith(f"cleave: `cleave {option}` needs the database and the machine")
