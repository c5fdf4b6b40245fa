"""The versions that pyproject.toml allows, tried: the smallest and the largest of each.

`python -m tests.matrix` runs every cell, `python -m tests.matrix pyspark 3.1` those with one of the words in their
names. A cell is an environment and the tests that exercise what differs in it. The table at the end says how they
ended; what a cell that failed printed is in .cache/matrix, and then the exit code is 1.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType

from controller.devstack.postgres_home import wheel_binaries
from controller.devstack.pulsar.jars import PULSAR_4_OLDEST
from tests.matrix import compose, helm
from tests.matrix.environments import (
    PROJECT,
    ROOM,
    Broken,
    Skipped,
    airflow,
    house,
    install_beside,
    pinned,
    run,
)
from tests.matrix.versions import BETWEEN, LARGEST, OLD_POSTGRES, SMALLEST

STORE = ("tests/unit/store", "tests/integration/store", "tests/integration/bundles/store")
SPARK = ("tests/spark",)
WHEEL = ("-m", "matrix", "tests/integration/packaging/test_installed.py")
CHART = ("-m", "matrix", "tests/integration/packaging/test_chart.py")
STACK = ("-m", "matrix", "tests/integration/packaging/test_stack.py")
SCHEDULER = ("tests/integration/airflow/whole/test_real_scheduler.py",)
COMMAND = "tests/integration/commands/test_cli.py"
GATES = (
    "tests/integration/dataplane/test_pulsar_gates.py",
    "tests/integration/dataplane/test_pulsar_stock_clients.py",
)
NO_BROWSER = "not (browser or chaos or matrix)"
DAGS = ("-m", NO_BROWSER, "tests/integration/airflow", COMMAND, "--deselect", *SCHEDULER)
PAGES = (
    "tests/integration/airflow/whole/test_pages.py",
    "tests/integration/airflow/whole/test_pages_open.py",
    "tests/integration/airflow/whole/test_approvals.py",
)

Cell = Callable[[], str]
"""Does its work and gives one line about it; raises Broken, or Skipped."""


def cells() -> dict[str, Cell]:
    """By name, those that take least first."""
    airflows = (SMALLEST["apache-airflow"], LARGEST["apache-airflow"])
    each_minor = (airflows[0], *BETWEEN["apache-airflow"], airflows[1])
    sqlalchemy, pyspark = SMALLEST["sqlalchemy"], SMALLEST["pyspark"]
    old_sqlalchemy = partial(pinned, f"sqlalchemy-{sqlalchemy}", {"sqlalchemy": sqlalchemy})
    old_pyspark = partial(pinned, f"pyspark-{pyspark}", {"pyspark": pyspark})
    found: dict[str, Cell] = {}
    for version in each_minor:
        found[f"pip install beside Airflow {version}"] = partial(install_beside, version)
    found["compose"] = composed
    found["helm"] = with_tools(helm.prepared, CHART)
    found[f"Pulsar {PULSAR_4_OLDEST}: gates"] = lambda: run_tests(
        house, GATES, {"CLEAVE_TEST_PULSAR_VERSION": PULSAR_4_OLDEST}
    )
    found["the wheel with each extra"] = partial(run_tests, house, WHEEL)
    found[f"PySpark {pyspark}"] = partial(run_tests, old_pyspark, SPARK)
    found[f"PySpark {LARGEST['pyspark']}"] = partial(run_tests, house, SPARK)
    for what, tests, versions in (
        ("scheduler", SCHEDULER, airflows),
        ("DAGs, command", DAGS, each_minor),
        ("pages in a browser", PAGES, each_minor),
    ):
        for version in versions:
            found[f"Airflow {version}, SQLAlchemy {sqlalchemy}: {what}"] = partial(
                run_tests, partial(airflow, version), tests
            )
    found[f"PostgreSQL 15, SQLAlchemy {sqlalchemy}"] = partial(store_on, OLD_POSTGRES, old_sqlalchemy)
    found[f"PostgreSQL 18, SQLAlchemy {LARGEST['sqlalchemy']}"] = partial(store_on, wheel_binaries(), house)
    return found


def run_tests(
    python: Callable[[], Path], tests: Sequence[str], told: Mapping[str, str] = MappingProxyType({})
) -> str:
    """The line of pytest that counts, which is all of it that the table shows; ``told`` are variables for the tests."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("CLEAVE_TEST_")} | dict(told)
    done = subprocess.run(
        [python(), "-m", "pytest", "-q", *tests],
        cwd=PROJECT,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Broken(done.stdout)
    return str(re.findall(r"^.*\d+ passed.* in .*$", done.stdout, re.MULTILINE)[-1]).strip("= ")


def store_on(binaries: Path, python: Callable[[], Path]) -> str:
    """The store's tests on the PostgreSQL in ``binaries``."""
    if not (binaries / "postgres").exists():
        raise Broken(f"no {binaries}/postgres: on Debian 12, apt-get install postgresql-15")
    version = run([binaries / "postgres", "--version"]).split()[2]
    return f"{version}: {run_tests(python, STORE, {'CLEAVE_TEST_POSTGRES_BIN': str(binaries)})}"


def with_tools(prepared: Callable[[], Mapping[str, str]], tests: Sequence[str]) -> Cell:
    """The tests in the development environment, with tools that are prepared first."""
    return lambda: run_tests(house, tests, prepared())


def composed() -> str:
    """The stack's tests, and after how many seconds it had recovered from each kill."""
    said = run_tests(house, STACK, compose.prepared())
    return f"{said}; recovered: {', '.join(compose.RECOVERED.read_text().splitlines())}"


def outcome(name: str, cell: Cell) -> tuple[bool, str]:
    """Whether the cell passed, and what to say of it."""
    log = ROOM / f"{'-'.join(name.translate(str.maketrans('', '', ',:')).split())}.log"
    log.unlink(missing_ok=True)
    began = time.monotonic()
    try:
        passed, said = True, cell()
    except Skipped as reason:
        return True, f"skipped         {reason}"
    except Broken as error:
        ROOM.mkdir(parents=True, exist_ok=True)
        log.write_text(f"{error}\n")
        passed, said = False, f"{str(error).strip().splitlines()[-1][:100]}, see {log.relative_to(PROJECT)}"
    return passed, f"{'passed' if passed else 'FAILED'}  {time.monotonic() - began:5.0f} s  {said}"


def main(words: list[str]) -> int:
    """Run the cells asked for; 0 if there was one and all passed."""
    asked = {
        name: cell
        for name, cell in cells().items()
        if not words or any(word.lower() in name.lower() for word in words)
    }
    ended = {}
    for name, cell in asked.items():
        print(f"== {name}", flush=True)
        ended[name] = outcome(name, cell)
        print(ended[name][1], flush=True)
    print()
    for name, (_, said) in ended.items():
        print(f"{name:<52}{said}")
    return 0 if ended and all(passed for passed, _ in ended.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
