"""A worker that dies costs the run one test's time, not the run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PLUGIN = "from tests.conftest import pytest_xdist_make_scheduler\n"
TESTS = """
import os, signal
from pathlib import Path
import pytest

@pytest.mark.xdist_group("server")
@pytest.mark.parametrize("number", range(12))
def test_of_one_server(number):
    mark = Path("{room}") / "died"
    if number == 7 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)

@pytest.mark.xdist_group("deadly")
@pytest.mark.parametrize("number", range(12))
def test_of_another(number):
    if number == 5:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_its_worker_died_at_is_made_once_more_and_all_others_are_made(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(PLUGIN)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_some.py").write_text(TESTS.format(room=tmp_path))
    command = [
        sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadgroup", "--reruns", "1", "-raR",
        "-p", "no:cacheprovider", "--import-mode=importlib", "--rootdir", str(tmp_path), str(tmp_path),
    ]  # fmt: skip

    said = subprocess.run(
        command, cwd=Path(__file__).parents[3], capture_output=True, text=True, timeout=100, check=False
    ).stdout

    assert "1 failed, 23 passed, 2 rerun" in said
    for line in (
        r"RERUN .*test_of_one_server\[7\]",
        r"RERUN .*test_of_another\[5\]",
        r"FAILED .*test_of_another\[5\]",
    ):
        assert re.search(line, said), said
