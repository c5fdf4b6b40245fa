"""The cache of broker jars: whole or absent, fetched once, and clear about what is missing.

Maven is a script here that does what each case needs; the real one fetches for the integration tests.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from controller.devstack.failure import DevstackFailed
from controller.devstack.pulsar import jars
from controller.devstack.pulsar.jars import VERSIONS, MavenMissing, cache_directory, pulsar_jars

FETCH = """
for argument do case $argument in -DoutputDirectory=*) out=${argument#*=};; esac; done
mkdir -p "$out" && echo jar > "$out/pulsar-broker-4.2.4.jar"
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "cache"
    monkeypatch.setenv("CLEAVE_CACHE_DIR", str(directory))
    return directory


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    """A line for each time the script was run."""
    return tmp_path / "calls"


def install_maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    command = tmp_path / "bin" / "mvn"
    command.parent.mkdir(exist_ok=True)
    command.write_text(f'#!/bin/sh\necho called >> "{tmp_path / "calls"}"\n{script}')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}:/usr/bin:/bin")


def test_a_version_is_fetched_once(tmp_path: Path, calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_maven(tmp_path, monkeypatch, FETCH)

    first, second = pulsar_jars(), pulsar_jars()

    assert first == second
    assert [jar.name for jar in first.iterdir()] == ["pulsar-broker-4.2.4.jar"]
    assert calls.read_text().splitlines() == ["called"]


def test_processes_that_ask_at_once_wait_for_one_fetch(
    tmp_path: Path, calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_maven(tmp_path, monkeypatch, f"sleep 0.3{FETCH}")
    program = "from controller.devstack.pulsar.jars import pulsar_jars; print(pulsar_jars())"

    askers = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    answers = {asker.communicate(timeout=60)[0] for asker in askers}

    assert answers == {f"{pulsar_jars()}\n"}
    assert calls.read_text().splitlines() == ["called"]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            f"{FETCH} echo '[ERROR] no such artifact'; echo '[ERROR] Re-run Maven'; exit 1",
            "no such artifact$",
        ),
        (f"{FETCH} kill -KILL $$", "could not fetch"),
        ("exit 0", "which contains no broker"),
    ],
    ids=["maven fails", "maven is killed", "nothing fetched"],
)
def test_a_half_fetched_directory_is_never_taken_for_whole(
    script: str, said: str, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_maven(tmp_path, monkeypatch, script)

    with pytest.raises(DevstackFailed, match=said):
        pulsar_jars()

    assert not [path for path in (cache / "pulsar").iterdir() if path.is_dir()]
    install_maven(tmp_path, monkeypatch, FETCH)
    assert list(pulsar_jars().iterdir())


def test_without_maven_one_line_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(MavenMissing, match=r"no Maven here.*apt install maven") as caught:
        pulsar_jars()

    assert "\n" not in str(caught.value)


def test_what_is_in_the_cache_needs_no_maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_maven(tmp_path, monkeypatch, FETCH)
    fetched = pulsar_jars()

    monkeypatch.setenv("PATH", str(tmp_path))

    assert pulsar_jars() == fetched


def test_a_changed_pom_is_fetched_anew(tmp_path: Path, calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_maven(tmp_path, monkeypatch, FETCH)
    before = pulsar_jars()

    monkeypatch.setattr(jars, "_pom", lambda version: b"<project/>")

    assert pulsar_jars() != before
    assert calls.read_text().splitlines() == ["called", "called"]


def test_an_unknown_version_is_refused_with_the_known_ones() -> None:
    with pytest.raises(DevstackFailed, match=r"'3\.0\.0'.*4\.2\.4, 5\.0\.0-M1"):
        pulsar_jars("3.0.0")


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_has_a_pom_that_names_it_and_no_registry(version: str) -> None:
    pom = jars._pom(version).decode()

    assert f"<version>{version}</version>" in pom
    assert "<repository>" not in pom


def test_the_cache_is_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_directory() == tmp_path / "cache"

    monkeypatch.delenv("CLEAVE_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_directory() == tmp_path / "xdg" / "cleave"

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_directory() == tmp_path / "home" / ".cache" / "cleave"
