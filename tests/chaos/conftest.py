"""Fixtures of the kill matrix, and its report: the table on the terminal and as JSON in the run's own directory."""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.devstack.postgres import PostgresServer
from tests.support.bench import Bench

_rows: list[dict[str, Any]] = []
_written_to: list[Path] = []


@pytest.fixture
def record_cell() -> Callable[..., None]:
    """Put one row into the table."""
    return lambda **row: _rows.append(row)


@pytest.fixture
def new_bench(postgres_server: PostgresServer, migrated_template: str) -> Iterator[Callable[[], Bench]]:
    """Any number of benches, each with a database of its own."""
    made: list[tuple[str, Bench]] = []

    def make() -> Bench:
        name = f"cleave_chaos_{secrets.token_hex(4)}"
        made.append((name, Bench(postgres_server.create_database(name, template=migrated_template))))
        return made[-1][1]

    yield make
    for name, bench in made:
        bench.close()
        postgres_server.drop_database(name)


@pytest.fixture(scope="session", autouse=True)
def _report(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Write the table down when the last cell has run."""
    yield
    path = tmp_path_factory.getbasetemp() / "kill-matrix.json"
    path.write_text(json.dumps(_rows, indent=1))
    _written_to.append(path)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print it, whether or not output is captured."""
    if not _rows:
        return
    terminalreporter.section("kill matrix")
    for row in _rows:
        terminalreporter.write_line(
            "{fault:<18} {scenario:<20} {path:<8} {at:<28} {ended:<8} "
            "found {findings:>2}  unwritable {unwritable_ms:>6} ms".format(**row)
        )
    faults = Counter(row["fault"] for row in _rows)
    longest = max(row["unwritable_ms"] for row in _rows)
    terminalreporter.write_line(
        f"{len(_rows)} cells: {', '.join(f'{count} {fault}' for fault, count in sorted(faults.items()))}; "
        f"longest unwritable {longest} ms"
    )
    for path in _written_to:
        terminalreporter.write_line(f"as JSON: {path}")
