"""Programs on the standard Java client: how they are compiled, and the one line on a machine without a compiler."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.devstack.failure import DevstackFailed
from controller.devstack.pulsar import standard_client
from controller.devstack.pulsar.standard_client import CONSUMER, compile_programs, java_compiler


@pytest.fixture(autouse=True)
def _bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is on PATH, and there is no Java."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(standard_client, "pulsar_jars", lambda: tmp_path / "jars")


def install(directory: Path, script: str) -> Path:
    """Write a `javac` that runs a script. Return its path."""
    directory.mkdir()
    compiler = directory / "javac"
    compiler.write_text(f"#!/bin/sh\n{script}\n")
    compiler.chmod(0o755)
    return compiler


def test_without_a_compiler_one_line_says_what_to_install() -> None:
    with pytest.raises(DevstackFailed, match=r"^no Java compiler here; run 'apt install [^\n]*$"):
        java_compiler()


def test_the_compiler_may_be_beside_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "jdk"
    home.mkdir()
    compiler = install(home / "bin", "")
    monkeypatch.setattr(standard_client, "system_java_home", lambda: home)

    assert java_compiler() == compiler


def test_the_consumer_and_further_sources_are_compiled_against_the_brokers_jars(tmp_path: Path) -> None:
    compiler = install(tmp_path / "bin", f'printf "%s\\n" "$@" > {tmp_path}/arguments')

    command = compile_programs(tmp_path / "classes", [tmp_path / "Other.java"])

    arguments = (tmp_path / "arguments").read_text().splitlines()
    names = {Path(argument).name for argument in arguments if argument.endswith(".java")}
    assert names == {f"{CONSUMER}.java", "History.java", "Ending.java", "Other.java"}
    assert arguments[arguments.index("-d") + 1] == str(tmp_path / "classes")
    assert command[0] == compiler.with_name("java")
    assert command[-1] == f"{tmp_path / 'classes'}:{tmp_path / 'jars'}/*"


def test_what_the_compiler_refuses_is_told(tmp_path: Path) -> None:
    install(tmp_path / "bin", "echo 'package is missing'; exit 1")

    with pytest.raises(DevstackFailed, match="package is missing"):
        compile_programs(tmp_path / "classes")


def test_a_compiler_that_does_not_end_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "bin", "exec /bin/sleep 60")
    monkeypatch.setattr(standard_client, "_COMPILE_SECONDS", 0.2)

    with pytest.raises(DevstackFailed, match=r"did not end within 0\.2 s"):
        compile_programs(tmp_path / "classes")
