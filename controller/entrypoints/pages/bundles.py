"""Bundles: what each broker carries, a namespace's bundles by load, and the proposals that wait for somebody."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection

from controller.entrypoints.pages.desk import MOST_ROWS
from controller.entrypoints.pages.figures import bundles_by_load
from controller.store.postgres import inspection

_BROKERS = (
    "SELECT * FROM inspect.bundles_brokers ORDER BY cluster, usage DESC NULLS LAST, broker LIMIT :limit"
)
_NAMESPACES = """
    SELECT cluster, namespace, mode, bundle_count, topic_count, msg_rate_in, byte_rate_in, msg_rate_out, byte_rate_out, actor, updated_at
      FROM inspect.bundles_namespaces ORDER BY byte_rate_in + byte_rate_out DESC NULLS LAST, namespace LIMIT :limit
"""
_BUNDLES = """
    SELECT *, byte_rate_in + byte_rate_out AS byte_rate FROM inspect.bundles_now
     WHERE namespace = :namespace ORDER BY cluster, lower_bound LIMIT 5000
"""
_PROPOSALS = """
    SELECT * FROM inspect.bundles_proposals WHERE state IN ('proposed', 'approved', 'applied') ORDER BY proposal_id DESC LIMIT :limit
"""
_WHY_NOT = "SELECT * FROM inspect.bundles_why_not ORDER BY cluster, namespace, bundle LIMIT :limit"


def page(tx: Connection, namespace: str) -> dict[str, Any]:
    """All brokers and namespaces; the bundles of one namespace, the busiest if none is named."""
    namespaces = inspection.rows(tx, _NAMESPACES, limit=MOST_ROWS)
    chosen = namespace or (namespaces[0]["namespace"] if namespaces else "")
    bundles = inspection.rows(tx, _BUNDLES, namespace=chosen)
    return {
        "brokers": inspection.rows(tx, _BROKERS, limit=MOST_ROWS),
        "namespaces": namespaces,
        "chosen": chosen,
        "bundles": bundles,
        "ring": bundles_by_load(bundles),
        "proposals": inspection.rows(tx, _PROPOSALS, limit=MOST_ROWS),
        "why_not": inspection.rows(tx, _WHY_NOT, limit=MOST_ROWS),
    }
