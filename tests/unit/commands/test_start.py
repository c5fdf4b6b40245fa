"""What a command loads before it starts: no library that it does not need. Libraries are most of a short command's time."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import typer

from controller.commands.cli import app, run
from tests.support.log_settings import logging_kept

_RUN = """
import contextlib, io, json, sys
from controller.commands.cli import run
with contextlib.redirect_stdout(io.StringIO()):
    code = run(json.loads(sys.argv[1]))
print(json.dumps([code, sorted({name.partition(".")[0] for name in sys.modules} | set(sys.modules))]))
"""
HELP_NEEDS_NONE_OF = {"rich", "sqlalchemy", "psycopg2", "pydantic", "structlog", "prometheus_client"}
NO_COMMAND_ON_TOPICS_NEEDS = {"fastapi", "numpy", "pandas", "pyarrow", "pyspark", "requests", "uvicorn"}
PARTS_OF_OTHER_COMMANDS = {
    "structlog",  # nothing to log yet
    "controller.bundles.bootstrap",
    "controller.services.load_aggregation",
    "controller.services.collection.load_collector",
    "controller.services.worker",
}


def loaded_by(*arguments: str) -> set[str]:
    """Modules and top-level packages in a process of its own, once the command has ended well."""
    done = subprocess.run(
        [sys.executable, "-c", _RUN, json.dumps(arguments)], capture_output=True, text=True, check=True
    )
    code, names = json.loads(done.stdout)
    assert code == 0
    return set(names)


@pytest.mark.parametrize(
    ("command", "loads", "needs_none_of"),
    [
        ("", "typer", HELP_NEEDS_NONE_OF | NO_COMMAND_ON_TOPICS_NEEDS),
        *(
            (command, "rich", NO_COMMAND_ON_TOPICS_NEEDS | PARTS_OF_OTHER_COMMANDS)
            for command in ("topics list", "segments split", "policy set", "decisions", "layout")
        ),
        (
            "check-history",
            "controller.commands.check_history",
            {"sqlalchemy", "psycopg2"} | NO_COMMAND_ON_TOPICS_NEEDS | PARTS_OF_OTHER_COMMANDS,
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_command_loads_nothing_that_is_for_others(
    command: str, loads: str, needs_none_of: set[str]
) -> None:
    """The list of commands needs Typer only; the checker of histories needs no database."""
    loaded = loaded_by(*command.split(), "--help")

    assert loads in loaded
    assert loaded & needs_none_of == set()


def test_a_command_that_only_shows_bundles_loads_nothing_that_reads_reports() -> None:
    assert (
        loaded_by("bundles", "show", "--help") & {"numpy", "pandas", "pyarrow", "pyspark", "uvicorn"} == set()
    )


@pytest.mark.parametrize("way", ["server_choice", "http_calls"])
def test_neither_way_loads_what_only_some_questions_need(way: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys, controller.commands.{way}; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(done.stdout.split())

    assert f"controller.commands.{way}" in loaded
    assert loaded & (NO_COMMAND_ON_TOPICS_NEEDS | {"controller.bundles.bootstrap"}) == set()


def test_each_command_of_the_list_is_there_and_explains_itself_by_the_sentence_of_the_list(
    capsys: pytest.CaptureFixture[str],
) -> None:
    listed = typer.main.get_command(app).commands

    assert len(listed) >= 16
    for name, command in listed.items():
        with logging_kept():
            assert run([name, "--help"]) == 0
        said = " ".join(capsys.readouterr().out.split())
        assert said.startswith(f"Usage: cleave {name} [OPTIONS]")
        assert command.help in said
