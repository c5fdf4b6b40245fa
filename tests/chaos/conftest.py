"""Fixtures of the kill matrix, and its report: the table on the terminal and as JSON in the run's own directory."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.devstack.postgres import PostgresServer
from controller.devstack.pulsar.java_server import QUICK
from controller.devstack.pulsar.standalone import PulsarStandalone
from tests.chaos.scalable_scene import ScalableBench, scalable_benches
from tests.support.bench import Bench
from tests.support.bench_planes import PulsarTopic
from tests.support.benches import benches
from tests.support.brokers import SharedBroker, demand_jars
from tests.support.gated_logs import GatedBench

_rows: list[dict[str, Any]] = []
_figures: list[str] = []
_written_to: list[Path] = []


@pytest.fixture
def record_cell() -> Callable[..., None]:
    """Put one row into the table; `plane` is the embedded one where nothing is said."""
    return lambda **row: _rows.append({"plane": "embedded", **row})


@pytest.fixture
def record_figure() -> Callable[[str], None]:
    """Print a line at the end, of what was measured and is no law."""
    return _figures.append


@pytest.fixture
def new_bench(postgres_server: PostgresServer, migrated_template: str) -> Iterator[Callable[[], Bench]]:
    """Any number of benches, each with a database of its own."""
    yield from benches(postgres_server, migrated_template, Bench)


@pytest.fixture
def new_gated_bench(
    postgres_server: PostgresServer, migrated_template: str
) -> Iterator[Callable[[], GatedBench]]:
    """Factory of benches on embedded logs with fake gates, each with a separate database."""
    yield from benches(postgres_server, migrated_template, GatedBench)


@pytest.fixture
def new_pulsar_bench(
    pulsar_broker: SharedBroker, postgres_server: PostgresServer, migrated_template: str
) -> Iterator[Callable[[], Bench]]:
    """Any number of benches on the run's broker, each with a database and a topic of its own."""

    def build(url: str) -> Bench:
        return Bench(url, PulsarTopic.fresh(pulsar_broker.admin_url, pulsar_broker.service_url, "chaos"))

    def remove_topic(bench: Bench) -> None:
        assert bench.pulsar is not None
        bench.pulsar.remove(bench.plane)

    yield from benches(postgres_server, migrated_template, build, remove_topic)


@pytest.fixture
def new_scalable_bench(
    pulsar5_broker: SharedBroker, postgres_server: PostgresServer, migrated_template: str
) -> Iterator[Callable[[], ScalableBench]]:
    """Any number of benches on the run's broker, each with a database and a topic of its own."""
    yield from scalable_benches(postgres_server, migrated_template, pulsar5_broker)


@pytest.fixture(scope="module")
def killable_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PulsarStandalone]:
    """A Pulsar 4.2.4 of the module's own, which waits for the disk before it answers, as brokers do by default."""
    server = PulsarStandalone(
        tmp_path_factory.mktemp("killable"), jvm=QUICK, properties={"journalSyncData": "true"}
    )
    demand_jars(server.version)
    server.start()
    yield server
    server.destroy()


@pytest.fixture(scope="session", autouse=True)
def _report(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Write the table down when the last cell has run."""
    yield
    path = tmp_path_factory.getbasetemp() / "kill-matrix.json"
    path.write_text(json.dumps(_rows, indent=1))
    _written_to.append(path)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print it, whether or not output is captured."""
    if _figures:
        terminalreporter.section("measured")
    for figure in _figures:
        terminalreporter.write_line(figure)
    if not _rows:
        return
    terminalreporter.section("kill matrix")
    for row in _rows:
        terminalreporter.write_line(
            "{plane:<8} {fault:<18} {scenario:<20} {path:<8} {at:<28} {ended:<8} "
            "found {findings:>2}  unwritable {unwritable_ms:>6} ms".format(**row)
        )
    for plane in sorted({row["plane"] for row in _rows}):
        rows = [row for row in _rows if row["plane"] == plane]
        faults = Counter(row["fault"] for row in rows)
        longest = max(row["unwritable_ms"] for row in rows)
        terminalreporter.write_line(
            f"{plane}: {len(rows)} cells: "
            f"{', '.join(f'{count} {fault}' for fault, count in sorted(faults.items()))}; "
            f"longest unwritable {longest} ms"
        )
    for path in _written_to:
        terminalreporter.write_line(f"as JSON: {path}")
