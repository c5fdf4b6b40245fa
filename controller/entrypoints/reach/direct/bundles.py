"""Bundles of the cluster that the settings name, read in the database."""

from __future__ import annotations

from collections.abc import Sequence

from controller.bootstrap import application
from controller.bundles.store import views as bundle_views
from controller.entrypoints.reach.port import FoundBundles, Row


class DirectBundles:
    """See `port.Bundles`."""

    def list(self, namespace: str | None, limit: int) -> FoundBundles:
        """See `port.Bundles`."""
        with application() as cleave, cleave.store.transaction() as tx:
            cluster = cleave.settings.pulsar_cluster
            rows = bundle_views.bundles_now(tx, cluster, namespace, limit=limit)
            return FoundBundles(cluster, rows, bundle_views.count_bundles(tx, cluster, namespace))

    def proposals(
        self, *, namespace: str | None, states: Sequence[str], cycle_id: int | None, limit: int
    ) -> Sequence[Row]:
        """See `port.Bundles`."""
        with application() as cleave, cleave.store.transaction() as tx:
            return bundle_views.proposals(
                tx,
                cleave.settings.pulsar_cluster,
                states=states,
                namespace=namespace,
                cycle_id=cycle_id,
                limit=limit,
            )
