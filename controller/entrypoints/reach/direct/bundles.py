"""Bundles of the cluster that the settings name, by the database and the brokers themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from controller.bootstrap import application
from controller.bundles.services import split_policies
from controller.bundles.services.split_policies import PolicyOfNamespace
from controller.bundles.store import cycles as bundle_cycles
from controller.bundles.store import namespaces as bundle_namespaces
from controller.bundles.store import views as bundle_views
from controller.bundles.store.cycles import StoredCycle
from controller.entrypoints.reach.port import FoundBrokers, FoundBundles, Row

if TYPE_CHECKING:
    from controller.bundles.bootstrap import Bundles


@contextmanager
def cluster() -> Iterator[Bundles]:
    """The cluster that the settings name, for one question."""
    from controller.bundles.bootstrap import bundles_of  # it loads what speaks with brokers, as `desk` does

    with application() as cleave, bundles_of(cleave) as bundles:
        yield bundles


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

    def brokers(self) -> FoundBrokers:
        """See `port.Bundles`."""
        from controller.entrypoints.bundles import desk

        with cluster() as bundles:
            with bundles.store.transaction() as tx:
                rows = bundle_views.brokers_now(tx, bundles.cluster)
            return FoundBrokers(rows, desk.active_brokers(bundles))

    def bundle_of(self, topic: str) -> str | None:
        """See `port.Bundles`."""
        with application() as cleave, cleave.store.transaction() as tx:
            bundle = bundle_namespaces.find_bundle_of(tx, cleave.settings.pulsar_cluster, topic)
        return None if bundle is None else str(bundle)

    def split_policy(self, namespace: str) -> PolicyOfNamespace:
        """See `port.Bundles`."""
        with application() as cleave:
            return split_policies.stored_split_policy(cleave.store, cleave.settings.pulsar_cluster, namespace)

    def merges(self, namespace: str | None) -> Sequence[Row]:
        """See `port.Bundles`."""
        from controller.entrypoints.bundles import desk

        with application() as cleave:
            return desk.merges(cleave, cleave.settings.pulsar_cluster, namespace)

    def cycle(self, cycle_id: int) -> StoredCycle:
        """See `port.Bundles`."""
        with application() as cleave, cleave.store.transaction() as tx:
            return bundle_cycles.stored_cycle(tx, cycle_id)
