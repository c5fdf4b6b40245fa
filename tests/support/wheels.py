"""The package as users get it: a wheel built from a copy of the checkout, installed into an environment of its own."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PROJECT = Path(__file__).parents[2]
PARTS = (
    "cleave_provider",
    "controller",
    "pulsar_cleave",
    "spark_jobs",
    "sql",
    "pyproject.toml",
    "README.md",
    "LICENSE",
)
"""What a wheel is built from."""
_UV = Path(sys.executable).with_name("uv")
_WITHOUT_SPARK_CLIENT = "pyspark-client ; sys_platform == 'never'\n"
"""As in pyproject.toml: the Spark provider asks for files that overwrite those of pyspark."""


def copy_source(to: Path) -> None:
    """A copy to build from, because a build leaves files in the folder it is built from."""
    for part in PARTS:
        source, target = PROJECT / part, to / part
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, target)


def build_wheel(room: Path) -> Path:
    """The wheel of this checkout."""
    source = room / "source"
    source.mkdir()
    copy_source(source)
    _run("build", "--wheel", "--out-dir", room / "dist", source)
    [wheel] = (room / "dist").glob("*.whl")
    return wheel


def install(wheel: Path, extra: str, home: Path) -> Path:
    """Python of a new environment that has the wheel with that extra, and nothing else; versions of constraints.txt."""
    _run("venv", "--python", sys.executable, home)
    override = home / "override.txt"
    override.write_text(_WITHOUT_SPARK_CLIENT)
    python = home / "bin" / "python"
    asked = f"{wheel}[{extra}]" if extra else wheel
    versions = ("--constraint", PROJECT / "constraints.txt", "--override", override)
    _run("pip", "install", "--python", python, *versions, asked)
    return python


def _run(command: str, *arguments: str | Path) -> None:
    done = subprocess.run(
        [_UV, command, *arguments], capture_output=True, text=True, check=False, cwd=tempfile.gettempdir()
    )
    assert done.returncode == 0, done.stderr[-3000:]
