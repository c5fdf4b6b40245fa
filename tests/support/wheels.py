"""The package as users get it: a wheel built from a copy of the checkout, installed into a new environment."""

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
    """Copy the checkout, because a build leaves files in its directory."""
    for part in PARTS:
        source, target = PROJECT / part, to / part
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, target)


def build_wheel(room: Path) -> Path:
    """Build the wheel of this checkout, and return its path."""
    source = room / "source"
    source.mkdir()
    copy_source(source)
    _run("build", "--wheel", "--out-dir", room / "dist", source)
    [wheel] = (room / "dist").glob("*.whl")
    return wheel


def install(wheel: Path, extra: str, home: Path) -> Path:
    """Create an environment with only the wheel and that extra, in the versions of constraints.txt. Return its Python."""
    _run("venv", "--python", sys.executable, home)
    override = home / "override.txt"
    override.write_text(_WITHOUT_SPARK_CLIENT)
    python = home / "bin" / "python"
    requirement = f"{wheel}[{extra}]" if extra else wheel
    versions = ("--constraint", PROJECT / "constraints.txt", "--override", override)
    _run("pip", "install", "--python", python, *versions, requirement)
    return python


def _run(command: str, *arguments: str | Path) -> None:
    done = subprocess.run(
        [_UV, command, *arguments], capture_output=True, text=True, check=False, cwd=tempfile.gettempdir()
    )
    assert done.returncode == 0, done.stderr[-3000:]
