"""An operator of two simulated brokers that answer over HTTP: a database and the command line for tests of `cleave bundles`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support import bundle_reports as rows
from tests.support.bundle_brokers import Bench, staged_bench
from tests.support.bundle_reports import HALF, LAST
from tests.support.command_line import CommandLine
from tests.support.store_driver import StoreDriver

CLUSTER, NAMESPACE = "staged", "acme/shop"
LOW, HIGH = f"{NAMESPACE}/0x00000000_0x80000000", f"{NAMESPACE}/0x80000000_0xffffffff"
TOPICS = [f"persistent://{NAMESPACE}/orders-{number}" for number in range(12)]


@dataclass
class BundleOperator:
    """The command line, the brokers and the database."""

    cleave: CommandLine
    bench: Bench
    driver: StoreDriver

    def uneven(self, low: float = 60.0, high: float = 20.0) -> tuple[str, str]:
        """Store load as one aggregation run leaves it: the first broker is full, the second idle."""
        first, second = self.bench.cluster.brokers
        self.bench.cluster.owners = dict.fromkeys(self.bench.cluster.owners, first)
        brokers = [
            rows.broker(first, 90.0, byte_rate_in=80.0, byte_rate_out=80.0),
            rows.broker(second, 5.0),
        ]
        changes = {
            "boundaries": [rows.boundaries(HALF)],
            "brokers": brokers,
            "clusters": [rows.cluster_figures(usage_mean=0.5, usage_stddev=0.4)],
        }
        self._merge(0, changes, low, high)
        return first, second

    def later(self, minutes: int, low: float, high: float) -> None:
        """Store the load of the two bundles as the run of that minute has it; one run a minute."""
        self._merge(minutes, {}, low, high)

    def _merge(self, minutes: int, changes: dict[str, list[dict[str, Any]]], low: float, high: float) -> None:
        first, _ = self.bench.cluster.brokers
        row_versions = {
            "seen_row_version": minutes,
            "seen_namespace_version": min(minutes, 1),
            "modified_at_ms": rows.NOW_MS + minutes * 60_000,
        }
        changes["bundles"] = [
            rows.bundle(0, HALF, low, broker=first, topic_count=9, **row_versions),
            rows.bundle(HALF, LAST, high, broker=first, topic_count=3, **row_versions),
        ]
        for table in changes.values():
            for row in table:
                row["cluster"] = CLUSTER
        self.driver.do(rows.merge, f"run-{minutes}", changes, minutes=minutes)


@contextmanager
def bundle_operator(
    database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[BundleOperator]:
    """Yield an operator of a cluster with one namespace of two bundles; the settings name the cluster."""
    with staged_bench() as bench:
        bench.cluster.add(NAMESPACE, HALF)
        monkeypatch.setenv("CLEAVE_DATABASE_URL", database)
        monkeypatch.setenv("CLEAVE_PULSAR_ADMIN_URL", f"http://{bench.cluster.brokers[0]}")
        monkeypatch.setenv("CLEAVE_PULSAR_CLUSTER", CLUSTER)
        monkeypatch.setenv("CLEAVE_BUNDLE_REPORTS_URL", str(tmp_path / "reports"))
        parameters = {"shedder": "threshold", "threshold_min_byte_rate": 0, "placement": "least_usage"}
        monkeypatch.setenv("CLEAVE_BUNDLE_BALANCE", json.dumps(parameters))
        monkeypatch.chdir(tmp_path)
        operator = BundleOperator(CommandLine(database, capsys), bench, StoreDriver(database))
        yield operator
        operator.driver.store.dispose()
        operator.cleave.store.dispose()
