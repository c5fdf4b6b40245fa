"""Where no broker can be fetched: on a developer's machine its tests are skipped, in a whole check they fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from controller.devstack.pulsar.jars import PULSAR_4, VERSIONS
from tests.support.brokers import STANDALONE, demand_jars, shared_broker

ROOT = Path(__file__).parents[3]
ONE_LINE = r"^no Maven here.*apt install maven[^\n]*$"


@pytest.fixture(autouse=True)
def _bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing on PATH and nothing in the cache."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CLEAVE_CACHE_DIR", str(tmp_path / "cache"))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("ci", ["true", "TRUE", "1"])
def test_a_whole_check_without_maven_fails(ci: str, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", ci)

    with pytest.raises(pytest.fail.Exception, match=ONE_LINE):
        demand_jars(version)


@pytest.mark.parametrize("ci", [None, "", "false", "0"])
def test_elsewhere_the_test_is_skipped_with_one_line(ci: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    if ci is not None:
        monkeypatch.setenv("CI", ci)

    with pytest.raises(pytest.skip.Exception, match=ONE_LINE):
        demand_jars(PULSAR_4)


def test_the_shared_broker_asks_before_it_starts_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")

    with pytest.raises(pytest.fail.Exception, match=ONE_LINE), shared_broker(STANDALONE, tmp_path / "room"):
        pass

    assert not (tmp_path / "room").exists()


@pytest.mark.parametrize(("inherited", "expected"), [(None, "true"), ("false", "false")])
def test_the_whole_check_says_that_it_is_one(inherited: str | None, expected: str, tmp_path: Path) -> None:
    """`.ci/run` with a `make` that tells what it was given: its first step fails, so nothing else is run."""
    make = tmp_path / "make"
    make.write_text('#!/bin/sh\necho "CI is $CI"\nexit 1\n')
    make.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{Path(sys.executable).parent}:/usr/bin:/bin"}
    if inherited is not None:
        environment["CI"] = inherited

    done = subprocess.run(
        [ROOT / ".ci" / "run"], env=environment, capture_output=True, text=True, timeout=110, check=False
    )

    assert f"CI is {expected}" in done.stdout.splitlines()
    assert (done.returncode, "== failed: setup" in done.stderr) == (1, True)
