"""Environments of the matrix, in .cache/matrix: each is built once, and anew when what it is made of has changed.

`pinned` is the development environment with other versions of some packages. `airflow` is what users have: an Airflow
with its own pins, and Cleave installed into it with pip.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.support.wheels import copy_source

PROJECT = Path(__file__).parents[2]
ROOM = PROJECT / ".cache" / "matrix"
UV = Path(sys.executable).with_name("uv")

_TEST_TOOLS = ("hypothesis", "playwright", "pytest", "pytest-timeout", "pytest-xdist", "pyyaml", "duckdb")
_KEPT = re.compile(r"(sqlalchemy|apache-airflow.*)==")
"""What an installation of Cleave must leave as it is."""
_IMPORTS = """
import runpy, sys
from pathlib import Path
import typer
from controller.commands.cli import app
assert all(one.load() for one in typer.main.get_command(app).commands.values())
project = Path(sys.argv[1])
sys.path.insert(0, str(project / "plugins"))
for dag in sorted((project / "dags").glob("*.py")):
    runpy.run_path(str(dag))
"""


class Broken(Exception):
    """An environment that cannot be made, or is not as it should be."""


class Skipped(Exception):
    """A tool that a cell needs and that this machine does not have."""


def house() -> Path:
    """Python of the development environment: the largest version of everything, exactly constraints.txt."""
    return Path(sys.executable)


def pinned(name: str, replaced: Mapping[str, str]) -> Path:
    """Python of an environment that is constraints.txt but for the versions in ``replaced``."""
    lines = (PROJECT / "constraints.txt").read_text().splitlines()
    for package, version in replaced.items():
        place = next(at for at, line in enumerate(lines) if line.startswith(f"{package}=="))
        lines[place] = f"{package}=={version}"
    made_of = "\n".join(lines) + "\n"
    home = ROOM / name
    if not _is_complete(home, made_of):
        python = _new(home)
        packages = home / "packages.txt"
        packages.write_text(made_of)
        _uv(python, "--no-deps", "-r", packages)
        _uv(python, "--no-deps", "-e", PROJECT)
        _complete(home, made_of)
    return home / "bin" / "python"


def airflow(version: str) -> Path:
    """Python of the Airflow that `install_beside` made, with what the tests need."""
    home, made_of = _airflow_home(version)
    if not _is_complete(home, made_of):
        install_beside(version)
    return home / "bin" / "python"


def install_beside(version: str) -> str:
    """Install an Airflow, then Cleave into it with pip; says what that changed.

    Always from nothing, since it is the installation that is tried. Raises Broken if Airflow or SQLAlchemy are not
    as they were, or if the command or a DAG of Cleave cannot be imported.
    """
    home, made_of = _airflow_home(version)
    python = _new(home)
    _uv(python, "--no-deps", "-r", _airflow_packages(version))
    before = _frozen(python)
    _pip_install(python, version)
    after = _frozen(python)
    said = _compared(before, after)
    with tempfile.TemporaryDirectory() as elsewhere:
        run([python, "-c", _IMPORTS, PROJECT], env={"AIRFLOW_HOME": elsewhere}, cwd=Path(elsewhere))
    kept = home / "kept.txt"
    kept.write_text("\n".join(sorted(after)) + "\n")
    _uv(python, "--constraint", kept, "-e", f"{PROJECT}[devstack]", *_TEST_TOOLS)
    _complete(home, made_of)
    return said


def run(command: list[str | Path], *, env: Mapping[str, str] | None = None, cwd: Path = PROJECT) -> str:
    """Output of a command that succeeded; raises Broken with the end of what it said."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Broken(f"{' '.join(map(str, command))[:200]}\n{done.stdout[-3000:]}")
    return done.stdout


def _airflow_home(version: str) -> tuple[Path, str]:
    made_of = _airflow_packages(version).read_text() + (PROJECT / "pyproject.toml").read_text()
    return ROOM / f"airflow-{version}", made_of


def _airflow_packages(version: str) -> Path:
    return Path(__file__).with_name(f"airflow-{version}.txt")


def _new(home: Path) -> Path:
    shutil.rmtree(home, ignore_errors=True)
    home.parent.mkdir(parents=True, exist_ok=True)
    run([sys.executable, "-m", "venv", home])
    return home / "bin" / "python"


def _complete(home: Path, made_of: str) -> None:
    (home / "complete").write_text(made_of)


def _is_complete(home: Path, made_of: str) -> bool:
    mark = home / "complete"
    return mark.exists() and mark.read_text() == made_of


def _uv(python: Path, *arguments: str | Path) -> None:
    run([UV, "pip", "install", "--quiet", "--python", python, *arguments])


def _pip_install(python: Path, version: str) -> None:
    """As a user does it; from a copy, because a build leaves files in the folder it is built from."""
    with tempfile.TemporaryDirectory() as temporary:
        copy_source(Path(temporary))
        asked = [f"{temporary}[pages,pulsar,spark]", f"apache-airflow=={version}"]
        run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *asked])


def _frozen(python: Path) -> set[str]:
    listed = run([UV, "pip", "freeze", "--quiet", "--python", python]).splitlines()
    return {line.lower() for line in listed if "==" in line}


def _compared(before: set[str], after: set[str]) -> str:
    """Which packages are no longer what they were; raises Broken if one of them must stay."""
    gone = sorted(before - after)
    if touched := [line for line in gone if _KEPT.match(line)]:
        raise Broken(f"installing Cleave changed {', '.join(touched)}")
    if client := [line for line in after if line.startswith("pyspark-client")]:
        raise Broken(f"{client[0]} is here: it overwrites files of pyspark")
    names = {line.partition("==")[0] for line in gone}
    now = sorted(line for line in after - before if line.partition("==")[0] in names)
    return f"{len(after - before) - len(now)} packages more; other versions: {', '.join(now) or 'none'}"
