"""Reads bundles from the inspect views: present load, and the proposals and refusals of a cycle."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection

from controller.domain.errors import NotFound
from controller.store.postgres import inspection

Rows = list[dict[str, Any]]
UNKNOWN_NAMESPACE = "no bundles of namespace {namespace} are known; collect and aggregate its reports first"

_BUNDLES_NOW = """
    SELECT namespace, bundle, broker, mode, topic_count, msg_rate, byte_rate, share_of_namespace, can_split, observed_at,
           lower_bound, upper_bound
      FROM inspect.bundles_now
     WHERE cluster = :cluster AND namespace = :namespace ORDER BY lower_bound
"""
_PROPOSED = """
    SELECT proposal_id, approval_id, kind, namespace || '/' || bundle AS bundle, broker, destination, cut_points, reason, state,
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
_BROKERS = """
    SELECT broker, usage, silent_seconds FROM inspect.bundles_brokers WHERE cluster = :cluster ORDER BY broker
"""


def gauges(tx: Connection, cluster: str) -> dict[str, list[tuple[list[str], float]]]:
    """Return the metrics of balancing, by the names of all metrics in `bundles.metrics`. A series is its label values, in the order of the
    labels there, and its value. The list of a metric without a value is empty; a broker of unknown usage has no series of
    `cleave_bundle_broker_usage`.
    """
    brokers = inspection.rows(tx, _BROKERS, cluster=cluster)
    series = {
        "cleave_bundle_broker_usage": [
            ([row["broker"]], float(row["usage"])) for row in brokers if row["usage"] is not None
        ],
        "cleave_bundle_broker_silent_seconds": [
            ([row["broker"]], float(row["silent_seconds"])) for row in brokers
        ],
    }
    for name, statement in _GAUGES.items():
        rows = [tuple(row.values()) for row in inspection.rows(tx, statement, cluster=cluster)]
        series[name] = [(list(map(str, labels)), float(value)) for *labels, value in rows]
    return series


def bundles_now(tx: Connection, cluster: str, namespace: str) -> Rows:
    """Return the bundles of a namespace, in the order of the ring, with the columns of `_BUNDLES_NOW`: the mode of the namespace, and each
    bundle's owner and load as last aggregated. Owner, load and share are None for a bundle without stored load, such as a bundle that no
    report has named yet. The owner is None also while no broker owns the bundle, the share also if the namespace has no traffic.
    `observed_at` is the time of the owner's last report, None if unknown. Raises NotFound if the namespace is not known.
    """
    rows = inspection.rows(tx, _BUNDLES_NOW, cluster=cluster, namespace=namespace)
    if not rows:
        raise unknown_namespace(namespace)
    return rows


def unknown_namespace(namespace: str) -> NotFound:
    """Return the error for a namespace whose bundles were never aggregated."""
    return NotFound(UNKNOWN_NAMESPACE.format(namespace=namespace))


def cycle_rows(tx: Connection, cluster: str, cycle_id: int) -> tuple[Rows, Rows]:
    """Return the proposals of a cycle, and its refusals with their reasons. Refusals are available for the newest
    cycle of the cluster only; for an older cycle the second list is empty.
    """
    key = {"cluster": cluster, "cycle_id": cycle_id}
    return inspection.rows(tx, _PROPOSED, **key), inspection.rows(tx, _WHY_NOT, **key)
