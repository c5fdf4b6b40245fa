"""Programs on the standard Java client of Pulsar, which contain no code of Cleave. They are compiled with this machine's JDK.

The package has one program, `StockConsumer`: it reads the segments of a topic by a pattern, and records what it is given for
`cleave check-history`.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from importlib.resources import as_file, files
from pathlib import Path

from controller.devstack.failure import DevstackFailed
from controller.devstack.pulsar.jars import pulsar_jars
from controller.spark_requirements import system_java_home

CONSUMER = "StockConsumer"
"""Class of the consumer. Its source says which arguments it takes."""
_QUICK_START = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_COMPILE_SECONDS = 120


def compile_programs(classes: Path, sources: Sequence[Path] = ()) -> list[str | Path]:
    """Compile the package's programs, and `sources` with them, into the directory `classes`.

    Return a command that runs a program: append the name of its class and its arguments. Raises DevstackFailed without a JDK or Maven, and
    for a program that the compiler refuses, and if the compiler takes longer than `_COMPILE_SECONDS`.
    """
    compiler = java_compiler()
    classpath = f"{pulsar_jars()}/*"
    with as_file(files("controller.devstack.pulsar").joinpath("java")) as own:
        command: list[str | Path] = [
            compiler,
            "-cp",
            classpath,
            "-d",
            classes,
            *sorted(own.glob("*.java")),
            *sources,
        ]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=_COMPILE_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise DevstackFailed(
                f"cannot compile programs on Pulsar's Java client: {compiler} did not end within {_COMPILE_SECONDS} s"
            ) from None
    if done.returncode:
        raise DevstackFailed(f"cannot compile programs on Pulsar's Java client: {done.stdout.strip()}")
    return [compiler.with_name("java"), *_QUICK_START, "-cp", f"{classes}:{classpath}"]


def java_compiler() -> Path:
    """Return the path of `javac`: that of PATH, else that of this machine's Java. Raises DevstackFailed if there is none."""
    on_path, home = shutil.which("javac"), system_java_home()
    if on_path is not None:
        return Path(on_path)
    if home is not None and (home / "bin" / "javac").exists():
        return home / "bin" / "javac"
    raise DevstackFailed(
        "no Java compiler here; run 'apt install openjdk-17-jdk-headless', or put javac on PATH"
    )
