"""Files that commands write: a path that cannot be written is refused before anything is computed, and no file is changed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from controller.commands.cli import run
from controller.commands.output_files import demand_writable, writing
from controller.domain.errors import InvalidInput
from tests.support.log_settings import logging_kept


def unwritable(directory: Path, kind: str) -> Path:
    """A path at which no file can be written."""
    (directory / "file").write_bytes(b"old")
    return {
        "away": directory / "missing" / "x.html",
        "directory": directory,
        "below a file": directory / "file" / "x.html",
        "long": directory / ("x" * 300),
    }[kind]


KINDS = pytest.mark.parametrize("kind", ["away", "directory", "below a file", "long"])


@pytest.mark.parametrize("line", ["backtest --html", "bundles draw acme/shop"])
@KINDS
def test_a_command_refuses_the_path_before_it_reads_the_database(
    line: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CLEAVE_API_URL", raising=False)
    monkeypatch.setenv("CLEAVE_DATABASE_URL", "postgresql+psycopg://nobody:pw@127.0.0.1:1/none")
    path = unwritable(tmp_path, kind)
    with logging_kept():
        code = run([*line.split(), str(path)])

    said = capsys.readouterr()
    assert (code, said.out, said.err.count("\n")) == (2, "", 1), said
    assert said.err.startswith(f"cleave: {path} cannot be written: ")
    assert "name a file that you may write, in a directory that exists" in said.err


def test_the_check_changes_no_file(tmp_path: Path) -> None:
    (tmp_path / "old.html").write_bytes(b"old")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    os.mkfifo(tmp_path / "pipe")
    for name in ("new.html", "old.html", "pipe", "link"):
        demand_writable(tmp_path / name)

    assert {path.name for path in tmp_path.iterdir()} == {"old.html", "pipe", "link"}
    assert (tmp_path / "old.html").read_bytes() == b"old"


def test_a_disk_that_is_full_is_named() -> None:
    full = Path("/dev/full")
    with (
        pytest.raises(InvalidInput, match=r"^/dev/full cannot be written: No space left on device; "),
        writing(full),
    ):
        full.write_text("x")
