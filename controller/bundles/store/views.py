"""What people read about bundles, out of the inspect views: load now, what a cycle proposed, and what it left alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection

from controller.domain.errors import NotFound
from controller.store.postgres import inspection

Rows = list[dict[str, Any]]

EVERY_BUNDLE = 100_000
"""More bundles than a namespace can have."""

_BUNDLES_NOW = """
    SELECT namespace, bundle, broker, mode, topic_count, round((msg_rate_in + msg_rate_out)::numeric, 1) AS msg_rate,
           round((byte_rate_in + byte_rate_out)::numeric, 0) AS byte_rate, share_of_namespace, can_split, observed_at,
           lower_bound, upper_bound
      FROM inspect.bundles_now
     WHERE cluster = :cluster AND (CAST(:namespace AS text) IS NULL OR namespace = :namespace)
     ORDER BY namespace, lower_bound LIMIT :limit
"""
_PROPOSED = """
    SELECT proposal_id, kind, namespace || '/' || bundle AS bundle, broker, destination, cut_points, reason, state,
           mode, outcome
      FROM inspect.bundles_proposals WHERE cluster = :cluster AND cycle_id = :cycle_id ORDER BY proposal_id
"""
_WHY_NOT = """
    SELECT namespace, bundle, broker, rule, reason, metric, value, needed FROM inspect.bundles_why_not
     WHERE cluster = :cluster AND cycle_id = :cycle_id AND proposal_id IS NULL ORDER BY namespace, bundle, broker, rule
"""

_GAUGES = {
    "cleave_bundle_usage_spread": """
        SELECT usage_stddev / usage_mean AS spread
          FROM (SELECT usage_stddev, usage_mean FROM cleave.cluster_load
                 WHERE cluster = :cluster ORDER BY window_end DESC LIMIT 1) newest
         WHERE usage_mean > 0
    """,
    "cleave_bundle_cycle_age_seconds": """
        SELECT extract(epoch FROM clock_timestamp() - decided_at) AS age FROM cleave.bundle_decision
         WHERE cluster = :cluster ORDER BY cycle_id DESC LIMIT 1
    """,
    "cleave_bundle_proposals": """
        SELECT kind, state, count(*) AS proposals FROM cleave.bundle_proposal
         WHERE cluster = :cluster AND changed_at > clock_timestamp() - interval '24 hours' GROUP BY kind, state
    """,
    "cleave_bundle_namespaces": """
        SELECT mode, count(*) AS namespaces FROM cleave.namespace_bundles WHERE cluster = :cluster GROUP BY mode
    """,
}
_COUNT = """
    SELECT coalesce(sum(bundle_count), 0) AS bundles FROM inspect.bundles_namespaces
     WHERE cluster = :cluster AND (CAST(:namespace AS text) IS NULL OR namespace = :namespace)
"""
_BROKERS = """
    SELECT broker, usage, above_mean, busiest_signal, bundle_count, topic_count,
           round((msg_rate_in + msg_rate_out)::numeric, 1) AS msg_rate,
           round((byte_rate_in + byte_rate_out)::numeric, 0) AS byte_rate, silent_seconds, report, version
      FROM inspect.bundles_brokers WHERE cluster = :cluster ORDER BY usage DESC NULLS LAST, broker
"""
_PROPOSALS = """
    SELECT proposal_id, cycle_id, round(extract(epoch FROM clock_timestamp() - decided_at)) AS age_seconds, kind, state,
           namespace || '/' || bundle AS bundle, broker, destination, cut_points, reason, mode, actor, outcome
      FROM inspect.bundles_proposals
     WHERE cluster = :cluster AND (CAST(:cycle_id AS bigint) IS NULL OR cycle_id = :cycle_id)
       AND (CAST(:namespace AS text) IS NULL OR namespace = :namespace)
       AND (cardinality(CAST(:states AS text[])) = 0 OR state = ANY (:states))
     ORDER BY proposal_id DESC LIMIT :limit
"""


def brokers_now(tx: Connection, cluster: str) -> Rows:
    """Brokers and what they carried when they were last read, the fullest first."""
    return inspection.rows(tx, _BROKERS, cluster=cluster)


def proposals(
    tx: Connection,
    cluster: str,
    *,
    states: Sequence[str],
    namespace: str | None,
    cycle_id: int | None,
    limit: int,
) -> Rows:
    """Proposals with their ages, the newest first; no states: all."""
    key = {"cluster": cluster, "namespace": namespace, "cycle_id": cycle_id}
    return inspection.rows(tx, _PROPOSALS, **key, states=list(states), limit=limit)


def gauges(tx: Connection, cluster: str) -> dict[str, list[tuple[list[str], float]]]:
    """What is measured of balancing: label values and value, by the metric's name in `entrypoints.bundles.metrics`."""
    brokers = brokers_now(tx, cluster)
    found = {
        "cleave_bundle_broker_usage": [
            ([row["broker"]], float(row["usage"])) for row in brokers if row["usage"] is not None
        ],
        "cleave_bundle_broker_silent_seconds": [
            ([row["broker"]], float(row["silent_seconds"])) for row in brokers
        ],
    }
    for name, statement in _GAUGES.items():
        rows = [tuple(row.values()) for row in inspection.rows(tx, statement, cluster=cluster)]
        found[name] = [(list(map(str, labels)), float(value)) for *labels, value in rows]
    return found


def count_bundles(tx: Connection, cluster: str, namespace: str | None = None) -> int:
    """How many bundles are known."""
    return int(inspection.rows(tx, _COUNT, cluster=cluster, namespace=namespace)[0]["bundles"])


def bundles_now(
    tx: Connection, cluster: str, namespace: str | None = None, *, limit: int = EVERY_BUNDLE
) -> Rows:
    """Bundles with owner and load, as last aggregated. Raises NotFound for a namespace without any."""
    rows = inspection.rows(tx, _BUNDLES_NOW, cluster=cluster, namespace=namespace, limit=limit)
    if namespace is not None and not rows:
        raise unknown_namespace(namespace)
    return rows


def unknown_namespace(namespace: str) -> NotFound:
    """The error for a namespace whose bundles were never aggregated."""
    return NotFound(f"no bundles of namespace {namespace} are known; collect and aggregate its reports first")


def cycle_rows(tx: Connection, cluster: str, cycle_id: int) -> tuple[Rows, Rows]:
    """What a cycle proposed, and what it left alone with the reasons."""
    key = {"cluster": cluster, "cycle_id": cycle_id}
    return inspection.rows(tx, _PROPOSED, **key), inspection.rows(tx, _WHY_NOT, **key)
