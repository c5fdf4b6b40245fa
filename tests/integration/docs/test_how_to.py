"""What the how-tos tell people to type works on a topic of two segments."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from sqlalchemy import text

from tests.support.command_line import CommandLine

HOW_TO = Path(__file__).parents[3] / "docs" / "how-to"
_BLOCK = re.compile(r"^```(sh|sql)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(
    ("page", "commands"), [("set-policies.md", 8), ("split-and-merge-by-hand.md", 8), ("a-hot-key.md", 4)]
)
def test_each_command_of_a_how_to_does_what_it_is_told(
    page: str,
    commands: int,
    database: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("CLEAVE_DATABASE_URL", database)
    monkeypatch.chdir(tmp_path)
    cleave = CommandLine(database, capsys)
    cleave.ok("topics", "create", "acme/shop/orders", "--segments", "2")

    tried = 0
    for kind, body in _BLOCK.findall((HOW_TO / page).read_text()):
        if kind == "sql":
            with cleave.store.transaction() as tx:
                tx.execute(text(body))
            continue
        for line in body.splitlines():
            name, *arguments = shlex.split(line)
            assert name == "cleave"
            cleave.ok(*arguments)
            tried += 1
    cleave.store.dispose()

    assert tried >= commands
