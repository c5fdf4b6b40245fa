"""Log lines go where standard error is now, and are one JSON object each when programs read them."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller import telemetry
from tests.support.log_settings import logging_kept
from tests.support.terminal_attacks import ATTACKS, is_safe

PROJECT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    """Leave what other tests expect."""
    with logging_kept():
        yield


def test_a_stream_that_was_closed_since_is_not_written_to(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", first)
    telemetry.configure_logging()
    log = telemetry.get_logger("somebody")
    log.info("before")
    first.close()
    monkeypatch.setattr(sys, "stderr", second)

    log.info("after", figure=7)

    assert "after" in second.getvalue()
    assert "figure=7" in second.getvalue()


def test_json_lines_are_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    telemetry.configure_logging(json_lines=True)

    telemetry.get_logger("somebody").warning("tick failed", skipped=2)

    line = json.loads(stream.getvalue())
    assert (line["event"], line["skipped"], line["level"]) == ("tick failed", 2, "warning")


SAYS = """
import logging, warnings
from controller import telemetry

telemetry.configure_logging(json_lines=True)
with telemetry.bound(worker="w1"):
    try:
        raise RuntimeError("the socket broke")
    except RuntimeError:
        logging.getLogger("uvicorn.error").exception("Exception in %s", "ASGI application")
    logging.getLogger("uvicorn.error").info("Started server process")
    warnings.warn("something old is used", UserWarning)
    telemetry.get_logger("somebody").info("after")
"""


def test_what_a_library_says_has_the_same_form() -> None:
    """An exception in uvicorn, a warning of Python: each one JSON object, with the traceback in it. In a process of its own, since
    Airflow, in another test, has both say it elsewhere.
    """
    said = subprocess.run(
        [sys.executable, "-c", SAYS], cwd=PROJECT, stderr=subprocess.PIPE, text=True, check=True
    )

    library, python, own = map(json.loads, said.stderr.splitlines())
    assert (library["event"], library["level"], library["module"]) == (
        "Exception in ASGI application",
        "error",
        "uvicorn.error",
    )
    assert "RuntimeError: the socket broke" in library["exception"]
    assert library["timestamp"].endswith("Z")
    assert "something old is used" in python["event"]
    assert [line["worker"] for line in (library, python, own)] == ["w1"] * 3


def test_settings_that_are_made_again_say_nothing_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command begins with settings of its own, and a process that stays makes others."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    telemetry.configure_logging(level=logging.WARNING)
    telemetry.configure_logging(json_lines=True)
    logging.getLogger("sqlalchemy.pool").warning("a connection is gone")
    [line] = map(json.loads, stream.getvalue().splitlines())
    assert line["event"] == "a connection is gone"


def test_what_cannot_be_written_as_json_is_written_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    telemetry.configure_logging(json_lines=True)
    telemetry.get_logger("somebody").info("made", path=Path("/a/b"))
    assert json.loads(stream.getvalue())["path"] == "/a/b"


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
@pytest.mark.parametrize("json_lines", [False, True])
def test_no_value_commands_a_terminal_or_forges_a_line(
    monkeypatch: pytest.MonkeyPatch, attack: str, *, json_lines: bool
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    telemetry.configure_logging(json_lines=json_lines)
    log = telemetry.get_logger("somebody")

    event = f"tick {attack}"
    log.warning(event, consumer=attack, error=ValueError(attack), names=[attack], more={attack: attack})
    logging.getLogger("library").warning("said %s", attack)
    try:
        raise ValueError(attack)
    except ValueError:
        log.exception("it failed", consumer=attack)

    written = stream.getvalue()
    assert is_safe(written), repr(written)
    first, second, *_ = written.splitlines()
    assert "tick" in first
    assert "said" in second
    if json_lines:
        assert json.loads(first)["consumer"] == attack
