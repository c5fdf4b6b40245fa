"""Load of bundles, namespaces and brokers: the baseline of an aggregation run, the merge of its result, and reads.

The run reads a baseline as Arrow tables and computes elsewhere. It returns the changed rows with the row versions that it read.
`stage_and_merge` copies these rows into staging tables, and a function of the owner merges them, all in one transaction with the login
`cleave_spark_loader`. A run is merged once. A run whose window does not end after the watermark is not merged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
from sqlalchemy import Connection, text

from controller.store.postgres.arrow_copy import MergeResult, append, fetch

_INT, _FLOAT, _TEXT = pa.int64(), pa.float64(), pa.string()
_BUNDLE_KEY = [("cluster", _TEXT), ("namespace", _TEXT), ("lower_bound", _INT), ("upper_bound", _INT)]
_RATES = [(name, _FLOAT) for name in ("msg_rate_in", "byte_rate_in", "msg_rate_out", "byte_rate_out")]
_SEEN = [("seen_row_version", _INT)]
SIGNALS = ("cpu", "memory", "direct_memory", "bandwidth_in", "bandwidth_out")
"""Resources that a broker reports; each has a usage and a limit."""

NAMESPACE_SCHEMA = pa.schema(
    [
        ("cluster", _TEXT),
        ("namespace", _TEXT),
        ("boundaries", pa.list_(_INT)),
        ("boundaries_at_ms", _INT),
        ("row_version", _INT),
    ]
)
"""Boundaries as they are stored; `boundaries_at_ms` is when they were read from a broker."""

BOUNDARY_CHANGE_SCHEMA = pa.schema(
    [
        ("cluster", _TEXT),
        ("namespace", _TEXT),
        ("boundaries", pa.list_(_INT)),
        ("boundaries_at_ms", _INT),
        *_SEEN,
    ]
)
"""Boundaries to write."""

_BUNDLE = [
    *_BUNDLE_KEY,
    ("broker", _TEXT),
    *_RATES,
    *((name, _INT) for name in ("topic_count", "producer_count", "consumer_count", "cache_size_bytes")),
    ("modified_at_ms", _INT),
]
BUNDLE_SCHEMA = pa.schema([*_BUNDLE, ("row_version", _INT)])
"""Stored load of a bundle. `broker` is null if no broker owns the bundle."""
BUNDLE_CHANGE_SCHEMA = pa.schema([*_BUNDLE, *_SEEN, ("seen_namespace_version", _INT), ("gone", pa.bool_())])
"""Load of a bundle to write, or to remove if it is `gone`."""

_NAMESPACE = [
    ("cluster", _TEXT),
    ("namespace", _TEXT),
    *_RATES,
    ("topic_count", _INT),
    ("bundle_count", _INT),
    ("peak_msg_rate", _FLOAT),
    ("peak_byte_rate", _FLOAT),
    ("peak_topic_count", _INT),
    ("modified_at_ms", _INT),
]
NAMESPACE_LOAD_SCHEMA = pa.schema([*_NAMESPACE, ("row_version", _INT)])
NAMESPACE_CHANGE_SCHEMA = pa.schema([*_NAMESPACE, *_SEEN])

_BROKER = [
    ("cluster", _TEXT),
    ("broker", _TEXT),
    *((f"{signal}_{part}", _FLOAT) for signal in SIGNALS for part in ("usage", "limit")),
    *_RATES,
    *((name, _INT) for name in ("topic_count", "bundle_count", "producer_count", "consumer_count")),
    ("report", _TEXT),
    ("version", _TEXT),
    ("observed_at_ms", _INT),
]
BROKER_SCHEMA = pa.schema([*_BROKER, ("row_version", _INT)])
BROKER_CHANGE_SCHEMA = pa.schema([*_BROKER, *_SEEN, ("gone", pa.bool_())])

CLUSTER_SCHEMA = pa.schema(
    [
        ("cluster", _TEXT),
        ("window_end_ms", _INT),
        *((f"{what}_count", _INT) for what in ("broker", "bundle", "topic")),
        *((f"{what}_{f}", _FLOAT) for what in ("usage", "msg_rate", "byte_rate") for f in ("mean", "stddev")),
    ]
)
"""Means and population standard deviations over the brokers of a cluster."""

_STAGING = {
    "boundaries": ("staging.namespace_bundles_row", BOUNDARY_CHANGE_SCHEMA),
    "bundles": ("staging.bundle_row", BUNDLE_CHANGE_SCHEMA),
    "namespaces": ("staging.namespace_row", NAMESPACE_CHANGE_SCHEMA),
    "brokers": ("staging.broker_row", BROKER_CHANGE_SCHEMA),
    "clusters": ("staging.cluster_row", CLUSTER_SCHEMA),
}
CHANGE_SCHEMAS = {name: schema for name, (_, schema) in _STAGING.items()}
"""Schemas of the results of a run, by name."""

BASELINE_SCHEMAS = {
    "stored_boundaries": NAMESPACE_SCHEMA,
    "stored_bundles": BUNDLE_SCHEMA,
    "stored_namespaces": NAMESPACE_LOAD_SCHEMA,
    "stored_brokers": BROKER_SCHEMA,
}
"""Schemas of the inputs of a run, by name."""

_BASELINE = dict(
    zip(
        BASELINE_SCHEMAS,
        ("cleave.namespace_bundles", "cleave.bundle_load", "cleave.namespace_load", "cleave.broker_load"),
        strict=True,
    )
)


@dataclass(frozen=True, slots=True)
class BundleRun:
    """One aggregation run. `run_id` makes the merge idempotent; `window_end` is the watermark of the run. `topics`: number of rows in the
    files of topics that were read, one for each topic and tick. `quarantined`: paths of the files that are not reports.
    """

    run_id: str
    window_end: datetime
    engine: str
    topics: int
    quarantined: Sequence[str] = ()


def watermark(tx: Connection) -> datetime | None:
    """Return the end of the last merged window, which is the same for all clusters. None before the first. Runs that
    were applied later than the present time are ignored: the clock of the database went back, and the next merge
    deletes them.
    """
    window_end: datetime | None = tx.execute(
        text("SELECT max(window_end) FROM cleave.bundle_load_run WHERE applied_at <= clock_timestamp()")
    ).scalar_one()
    return window_end


def baseline(tx: Connection) -> dict[str, pa.Table]:
    """Return the stored load and boundaries of all clusters, by the names in BASELINE_SCHEMAS."""
    return {name: fetch(tx, _BASELINE[name], schema) for name, schema in BASELINE_SCHEMAS.items()}


def split_settings(tx: Connection) -> dict[tuple[str, str], Mapping[str, Any]]:
    """Return the overrides of each namespace's split policy, by cluster and namespace."""
    rows = tx.execute(text("SELECT cluster, namespace, split_settings FROM cleave.namespace_bundles"))
    return {(row.cluster, row.namespace): row.split_settings for row in rows}


def stage_and_merge(tx: Connection, run: BundleRun, changes: Mapping[str, pa.Table]) -> MergeResult:
    """Copy the result of a run into the staging tables and merge it. `changes` has a table for each name in CHANGE_SCHEMAS. Return the
    numbers of written and of outrun rows; rows of `clusters` are always written and not counted.

    A row whose record changed after the run read the record is outrun: it is not written, and the next run computes it again. A row of a
    bundle is also outrun if its namespace changed meanwhile, even only in its mode, unless the run itself found the present boundaries. A
    run that was merged before, or whose window does not end after the watermark, changes nothing (`applied` is False, both numbers are 0).
    """
    for name, (relation, schema) in _STAGING.items():
        append(tx, relation, run.run_id, changes[name], schema)
    row = tx.execute(
        text(
            "SELECT * FROM cleave.merge_bundle_load("
            ":run_id, :window_end, :engine, :topics, CAST(:quarantined AS text[]))"
        ),
        {
            "run_id": run.run_id,
            "window_end": run.window_end,
            "engine": run.engine,
            "topics": run.topics,
            "quarantined": list(run.quarantined),
        },
    ).one()
    return MergeResult(row.written, row.outrun, row.applied)


def bundles_of(tx: Connection, cluster: str) -> list[dict[str, Any]]:
    """Return the stored load of the cluster's bundles that are in the present boundaries, by namespace and range. A bundle without
    stored load is left out.
    """
    return _rows(tx, _BUNDLES_OF, cluster)


def brokers_of(tx: Connection, cluster: str) -> list[dict[str, Any]]:
    """Return the stored load of all brokers of the cluster, by name."""
    return _rows(tx, _BROKERS_OF, cluster)


def _rows(tx: Connection, statement: Any, cluster: str) -> list[dict[str, Any]]:
    return [dict(row) for row in tx.execute(statement, {"cluster": cluster}).mappings()]


_BUNDLES_OF = text("""
    SELECT l.* FROM cleave.namespace_bundles n
     CROSS JOIN LATERAL (SELECT bound AS lower_bound, lead(bound) OVER (ORDER BY place) AS upper_bound
                           FROM unnest(n.boundaries) WITH ORDINALITY AS u (bound, place)) edge
      JOIN cleave.bundle_load l USING (cluster, namespace, lower_bound, upper_bound)
     WHERE n.cluster = :cluster ORDER BY l.namespace, l.lower_bound
""")
_BROKERS_OF = text("SELECT * FROM cleave.broker_load WHERE cluster = :cluster ORDER BY broker")
