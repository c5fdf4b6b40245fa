"""Acts on bundles that a person asks for, by the command, over HTTP or in Airflow, as documents; each may be only rehearsed.

What is checked, and what brokers are told, is in `bundles.services` and `bundles.brokers`.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from controller.bootstrap import Application
from controller.bundles.bootstrap import Bundles, balance_settings
from controller.bundles.domain.splitting.algorithms.refusal import CutRefusal
from controller.bundles.services.manual_acts import ManualSplit
from controller.bundles.store import namespaces as bundle_namespaces
from controller.bundles.store import views as bundle_views
from controller.bundles.store.namespaces import BalancingMode
from controller.domain.errors import Conflict, DataPlaneUnavailable
from controller.entrypoints.bundles.rows import merge_document, part_rows
from controller.store.postgres.engine import Store

Row = dict[str, Any]


def split(bundles: Bundles, asked: ManualSplit, *, unload: bool, dry_run: bool) -> Row:
    """The parts, and unless it is rehearsed the `outcome`. Raises as `plan_manual_split`, Conflict where it cannot be cut so."""
    plan = bundles.plan_split(asked)
    if isinstance(plan, CutRefusal):
        raise Conflict(plan.sentence)
    document: Row = {"bundle": str(plan.bundle), "parts": part_rows(plan)}
    if not dry_run:
        document["outcome"] = str(bundles.acts.split_at(plan.bundle, plan.cuts, unload=unload).outcome)
    return document


def unload(bundles: Bundles, bundle: str, to: str | None, *, dry_run: bool) -> Row:
    """Who owns it, and unless it is rehearsed the `outcome`. Raises as `check_manual_unload`."""
    found, owner = bundles.check_unload(bundle, to)
    document: Row = {"bundle": str(found), "owner": owner, "destination": to}
    if not dry_run:
        result = bundles.acts.unload(found, destination=to)
        document |= {"outcome": str(result.outcome), "owner": result.owner}
    return document


def set_mode(store: Store, cluster: str, namespace: str, to: BalancingMode, *, actor: str) -> Row:
    """How far proposals of the namespace go from now on. Raises NotFound, LostRace."""
    with store.transaction() as tx:
        seen = bundle_namespaces.get_namespace(tx, cluster, namespace).row_version
        row = bundle_namespaces.set_mode(tx, cluster, namespace, to, actor=actor, seen_row_version=seen)
    return {"namespace": row.namespace, "mode": row.mode.value, "row_version": row.row_version}


def active_brokers(bundles: Bundles) -> list[str] | None:
    """The brokers on the cluster's list of active ones now, by name; None where no broker answers."""
    with suppress(DataPlaneUnavailable):
        return sorted(broker.name for broker in bundles.reader.brokers())
    return None


def merges(app: Application, cluster: str, namespace: str | None) -> list[Row]:
    """As `rows.merge_document`, of one namespace or of all. Raises NotFound for one whose bundles are not known."""
    from controller.bundles.services import balancer  # it loads what reads reports

    found = balancer.merges(app.store, cluster=cluster, settings=balance_settings(app.settings))
    chosen = {name: verdict for name, verdict in found.items() if namespace in (None, name)}
    if namespace is not None and not chosen:
        raise bundle_views.unknown_namespace(namespace)
    return merge_document(chosen)
