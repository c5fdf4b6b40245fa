"""A worker that dies costs the run one test's time, not the run: whatever another worker does at that moment."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

STAGE = """
import os, signal, time
from pathlib import Path

ROOM = Path(__file__).parent
WORKER = os.environ.get("PYTEST_XDIST_WORKER")
dies_at_its_end = False

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def first_time(what):
    seen = (ROOM / what).exists()
    (ROOM / what).touch()
    return not seen

def wait_for(mark):
    deadline = time.monotonic() + 60
    while not (ROOM / mark).exists():
        assert time.monotonic() < deadline, mark
        time.sleep(0.01)
"""
PLUGIN = """
import pytest
import stage
from tests.conftest import pytest_xdist_make_scheduler

def pytest_collection(session):
    if stage.WORKER:
        (stage.ROOM / stage.WORKER).touch()  # it has said that it is ready
"""
TESTS = """
import pytest
import stage

@pytest.mark.xdist_group("server")
@pytest.mark.parametrize("number", range(12))
def test_of_one_server(number):
    if number == 7 and stage.first_time("seven"):
        stage.die()

@pytest.mark.xdist_group("deadly")
@pytest.mark.parametrize("number", range(12))
def test_of_another(number):
    if number == 5:
        stage.die()
"""
COLLECTS_LATE = """
    if stage.WORKER == "gw2":
        stage.wait_for("gw3")
"""
THEN_THE_NEXT = """
    if stage.WORKER == "gw3":
        stage.wait_for("gw2 has collected")

@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session):
    (stage.ROOM / f"{stage.WORKER} has collected").touch()
"""
DIES_AT_ITS_END = """
@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session):
    if stage.dies_at_its_end:
        stage.die()
"""
THE_LAST_DIES = """
import pytest
import stage

@pytest.mark.xdist_group("server")
@pytest.mark.parametrize("number", range(12))
def test_of_one_server(number):
    if number == 11 and stage.first_time("eleven"):
        stage.wait_for("gw2")
        stage.die()

@pytest.mark.xdist_group("another")
def test_of_another():
    stage.dies_at_its_end = True
"""


def run(room: Path, plugin: str, tests: str) -> str:
    """What a run by two workers in `room` says, each test made again once."""
    (room / "stage.py").write_text(STAGE)
    (room / "conftest.py").write_text(plugin)
    (room / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    (room / "test_some.py").write_text(tests)
    command = [
        sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadgroup", "--reruns", "1", "-raR",
        "-p", "no:cacheprovider", "--import-mode=importlib", "--rootdir", str(room), str(room),
    ]  # fmt: skip
    return subprocess.run(
        command, cwd=Path(__file__).parents[3], capture_output=True, text=True, timeout=100, check=False
    ).stdout


@pytest.mark.parametrize(
    ("plugin", "tests"),
    [
        pytest.param(PLUGIN, TESTS, id="two die at any moment"),
        pytest.param(
            PLUGIN + COLLECTS_LATE,
            TESTS.replace("number == 5:", 'number == 5:\n        stage.wait_for("gw2")'),
            id="the second dies before the replacement of the first has collected",
        ),
    ],
)
def test_what_its_worker_died_at_is_made_once_more_and_all_others_are_made(
    plugin: str, tests: str, tmp_path: Path
) -> None:
    said = run(tmp_path, plugin, tests)

    assert "1 failed, 23 passed, 2 rerun" in said, said
    for line in (
        r"RERUN .*test_of_one_server\[7\]",
        r"RERUN .*test_of_another\[5\]",
        r"FAILED .*test_of_another\[5\]",
    ):
        assert re.search(line, said), said


def test_a_replacement_that_comes_when_all_is_handed_out_is_no_trouble_if_the_last_worker_dies(
    tmp_path: Path,
) -> None:
    said = run(tmp_path, PLUGIN + COLLECTS_LATE + THEN_THE_NEXT + DIES_AT_ITS_END, THE_LAST_DIES)

    assert "13 passed, 1 rerun" in said, said
    assert re.search(r"RERUN .*test_of_one_server\[11\]", said), said
