"""Load of bundles as an aggregation run passes it to the store: rows with defaults for every irrelevant field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from sqlalchemy import Connection

from controller.bundles.store import loads as bundle_loads
from controller.bundles.store import namespaces
from controller.bundles.store.loads import CHANGE_SCHEMAS, SIGNALS, BundleRun
from controller.bundles.store.namespaces import NamespaceRow
from controller.store.load.records import MergeResult
from tests.support.store_driver import StoreDriver

NOW = datetime(2026, 5, 17, 12, 0, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)
LAST = 0xFFFFFFFF
HALF = 0x80000000
CLUSTER, NAMESPACE = "standalone", "acme/shop"


def boundaries(*edges: int, namespace: str = NAMESPACE, seen: int = 0) -> dict[str, Any]:
    """Return the row of a namespace's boundaries; without edges it has one bundle."""
    return {
        "cluster": CLUSTER,
        "namespace": namespace,
        "boundaries": [0, *edges, LAST],
        "boundaries_at_ms": NOW_MS,
        "seen_row_version": seen,
    }


def bundle(lower: int, upper: int, rate: float = 0.0, **more: Any) -> dict[str, Any]:
    """Return the row of a bundle whose four rates are `rate`."""
    return {
        "cluster": CLUSTER,
        "namespace": NAMESPACE,
        "lower_bound": lower,
        "upper_bound": upper,
        "broker": "broker-1",
        "msg_rate_in": rate,
        "byte_rate_in": rate,
        "msg_rate_out": rate,
        "byte_rate_out": rate,
        "topic_count": 1,
        "producer_count": 2,
        "consumer_count": 3,
        "cache_size_bytes": 4,
        "modified_at_ms": NOW_MS,
        "seen_row_version": 0,
        "seen_namespace_version": 0,
        "gone": False,
    } | more


def namespace_figures(rate: float, **more: Any) -> dict[str, Any]:
    """Return the row of a namespace whose largest bundle has all its load."""
    return {
        "cluster": CLUSTER,
        "namespace": NAMESPACE,
        "msg_rate_in": rate,
        "byte_rate_in": rate,
        "msg_rate_out": rate,
        "byte_rate_out": rate,
        "topic_count": 1,
        "bundle_count": 1,
        "peak_msg_rate": 2 * rate,
        "peak_byte_rate": 2 * rate,
        "peak_topic_count": 1,
        "modified_at_ms": NOW_MS,
        "seen_row_version": 0,
    } | more


def broker(name: str = "broker-1", cpu: float = 50.0, **more: Any) -> dict[str, Any]:
    """Return the row of a broker with a limit of 100 of every resource."""
    usage = {f"{signal}_usage": 0.0 for signal in SIGNALS} | {f"{signal}_limit": 100.0 for signal in SIGNALS}
    rates = dict.fromkeys(("msg_rate_in", "byte_rate_in", "msg_rate_out", "byte_rate_out"), 0.0)
    counts = dict.fromkeys(("topic_count", "bundle_count", "producer_count", "consumer_count"), 1)
    return {
        "cluster": CLUSTER,
        "broker": name,
        **usage,
        "cpu_usage": cpu,
        **rates,
        **counts,
        "report": "load-report",
        "version": "4.2.4",
        "observed_at_ms": NOW_MS,
        "seen_row_version": 0,
        "gone": False,
    } | more


def cluster_figures(minutes: int = 0, **more: Any) -> dict[str, Any]:
    """Return the row of the spread of two brokers."""
    figures = {f"{w}_{f}": 0.0 for w in ("usage", "msg_rate", "byte_rate") for f in ("mean", "stddev")}
    return {
        "cluster": CLUSTER,
        "window_end_ms": NOW_MS + minutes * 60_000,
        "broker_count": 2,
        "bundle_count": 2,
        "topic_count": 1,
        **figures,
    } | more


def merge(
    tx: Connection, run: str, changes: Mapping[str, Sequence[dict[str, Any]]], *, minutes: int = 0
) -> MergeResult:
    """Merge one run whose window ends `minutes` after NOW; kinds that are missing in `changes` did not change."""
    tables = {
        name: pa.Table.from_pylist(list(changes.get(name, ())), schema)
        for name, schema in CHANGE_SCHEMAS.items()
    }
    end = NOW + timedelta(minutes=minutes)
    return bundle_loads.stage_and_merge(tx, BundleRun(run, end, "test", 7, ["bad.parquet"]), tables)


def add_namespace(driver: StoreDriver, *boundaries: int) -> NamespaceRow:
    """`NAMESPACE`, as the loader writes it down."""
    driver.sql(
        "INSERT INTO cleave.namespace_bundles (cluster, namespace, boundaries) VALUES (:cluster, :namespace, :boundaries)",
        cluster=CLUSTER,
        namespace=NAMESPACE,
        boundaries=list(boundaries),
    )
    return driver.do(namespaces.get_namespace, CLUSTER, NAMESPACE)
