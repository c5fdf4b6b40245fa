"""The quickstart does what it says: its shell blocks run in one shell, and print what is shown under them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.devstack.postgres import EmbeddedPostgres

QUICKSTART = Path(__file__).parents[3] / "docs" / "quickstart.md"
_BLOCK = re.compile(r"^```(sh|text)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_MARK = "@@ block {}"


def blocks() -> list[tuple[str, str]]:
    """Each shell block with the output that is shown below it, nothing where none is."""
    found: list[tuple[str, str]] = []
    for kind, body in _BLOCK.findall(QUICKSTART.read_text()):
        if kind == "sh":
            found.append((body, ""))
        else:
            found[-1] = (found[-1][0], body)
    return found


def squeezed(text: str) -> list[str]:
    """Lines with single blanks: columns are as wide as what else is in them."""
    return [" ".join(line.split()) for line in text.splitlines()]


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Path]:
    """Where the page keeps its PostgreSQL, whose data may lie elsewhere too."""
    directory = tmp_path / ".cleave" / "quickstart"
    yield directory
    EmbeddedPostgres(directory).destroy()


@pytest.mark.timeout(300)
def test_the_quickstart_runs_and_prints_what_it_shows(tmp_path: Path, database: Path) -> None:
    script = ["set -euo pipefail", "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT"]
    for number, (body, _) in enumerate(blocks()):
        script += [f"echo '{_MARK.format(number)}'", body]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("CLEAVE_", "AIRFLOW_"))}
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"

    done = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )

    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    for number, (_, shown) in enumerate(blocks()):
        printed = done.stdout.partition(f"{_MARK.format(number)}\n")[2].partition("@@ block")[0]
        lines = squeezed(printed)
        assert [one for one in squeezed(shown) if not any(one in line for line in lines)] == [], printed
    assert not (database / "env").exists()


def test_most_blocks_are_tried() -> None:
    """What is left out says so: `sh once`."""
    text = QUICKSTART.read_text()

    assert len(blocks()) >= 9
    assert text.count("```sh") == len(blocks()) + text.count("```sh once")
