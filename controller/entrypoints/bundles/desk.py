"""Questions about bundles that commands and calls share."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from controller.bootstrap import Application
from controller.bundles.bootstrap import Bundles, balance_settings
from controller.bundles.store import views as bundle_views
from controller.domain.errors import DataPlaneUnavailable
from controller.entrypoints.bundles.rows import merge_document

Row = dict[str, Any]


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
