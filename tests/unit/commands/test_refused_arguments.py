"""Arguments that no request takes, in every command that makes a request: one line that names the field, and exit code 2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from controller.commands.cli import run
from controller.commands.remote_commands import BOTH_WAYS
from controller.domain.names import LONGEST_TOPIC
from tests.support.log_settings import logging_kept
from tests.unit.commands.test_remote_commands import commands

HOSTILE = {"long": "x" * (LONGEST_TOPIC + 500), "not UTF-8": "\udce9"}
HUGE = "99999999999999999999"
_VALUES = {"parameters": "max_segments=2", "to": "earliest", "at": "earliest"}
"""Of parameters that take no "1"."""


def topic_verbs() -> list[tuple[str, Any]]:
    """The verbs that make a request about the topic that is their argument."""
    return [
        (verb, command)
        for verb, command in commands()
        if any(one.name == "topic" and one.param_type_name == "argument" for one in command.params)
        and (verb in BOTH_WAYS or hasattr(command.callback, "is_generated"))
    ]


def words(command: Any, topic: str) -> list[str]:
    """The topic, and a value for each other parameter that the command needs."""
    given = []
    for one in command.params:
        if one.name == "topic":
            given.append(topic)
        elif one.required:
            given += [one.opts[0]] * one.opts[0].startswith("-") + [_VALUES.get(one.name, "1")]
    return given


def refused(capsys: pytest.CaptureFixture[str], *line: str) -> str:
    """The one line of the command on standard error."""
    with logging_kept():
        code = run([*line])
    said = capsys.readouterr()
    assert (code, said.out, said.err.count("\n")) == (2, "", 1), said
    return said.err.removeprefix("cleave: ")


@pytest.fixture(autouse=True)
def no_database(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CLEAVE_API_URL", raising=False)
    monkeypatch.setenv("CLEAVE_DATABASE_URL", "postgresql+psycopg://nobody:pw@127.0.0.1:1/none")


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize(("verb", "command"), [pytest.param(*each, id=each[0]) for each in topic_verbs()])
def test_a_topic_that_no_request_takes(
    verb: str, command: Any, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(capsys, *verb.split(), *words(command, name)).startswith(("topic=", "topic "))


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("more", [(), ("--from-history",)], ids=["stored", "history"])
def test_a_topic_whose_decisions_cannot_be_replayed(
    name: str, more: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(capsys, "decisions", "replay", "--all", name, *more).startswith(("topic=", "topic "))


@pytest.mark.parametrize(
    ("verb", "field"),
    [("decisions replay", "decision_id"), ("bundles replay", "cycle_id"), ("backtests show", "run_id")],
)
def test_an_id_that_no_row_has(verb: str, field: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, *verb.split(), HUGE).startswith(f"{field}={HUGE}: ")
