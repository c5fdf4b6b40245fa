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
     WHERE cluster = :cluster AND namespace = :namespace ORDER BY lower_bound LIMIT :limit
"""
_PROPOSALS = """
    SELECT * FROM inspect.bundles_proposals WHERE state IN ('proposed', 'approved', 'applied') ORDER BY proposal_id DESC LIMIT :limit
"""
_WHY_NOT = "SELECT * FROM inspect.bundles_why_not ORDER BY cluster, namespace, bundle LIMIT :limit"


MOST_BUNDLES = 5_000
"""Drawn of one namespace."""


def page(tx: Connection, cluster: str, namespace: str) -> dict[str, Any]:
    """All brokers and namespaces; the bundles of one namespace of a cluster, the busiest that fits if one of both is not named."""
    namespaces = inspection.rows(tx, _NAMESPACES, limit=MOST_ROWS + 1)
    fitting = (
        one for one in namespaces if cluster in ("", one["cluster"]) and namespace in ("", one["namespace"])
    )
    busiest = next(fitting, {"cluster": cluster, "namespace": namespace})
    chosen = {"cluster": cluster or busiest["cluster"], "namespace": namespace or busiest["namespace"]}
    bundles = inspection.rows(tx, _BUNDLES, **chosen, limit=MOST_BUNDLES)
    return {
        "brokers": inspection.rows(tx, _BROKERS, limit=MOST_ROWS + 1),
        "namespaces": namespaces,
        "chosen": chosen,
        "bundles": bundles,
        "ring": bundles_by_load(bundles),
        "proposals": inspection.rows(tx, _PROPOSALS, limit=MOST_ROWS + 1),
        "why_not": inspection.rows(tx, _WHY_NOT, limit=MOST_ROWS + 1),
    }
