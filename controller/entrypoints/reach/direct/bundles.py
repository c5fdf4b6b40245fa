"""Bundles of the cluster that the settings name, by the database and the brokers themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from controller.actions.dry_run import stage
from controller.actions.waiting import user_name
from controller.bootstrap import application
from controller.bundles.services import split_policies
from controller.bundles.services.split_policies import PolicyOfNamespace
from controller.bundles.store import cycles as bundle_cycles
from controller.bundles.store import namespaces as bundle_namespaces
from controller.bundles.store import views as bundle_views
from controller.bundles.store.cycles import StoredCycle
from controller.bundles.store.namespaces import BalancingMode
from controller.entrypoints.bundles import rows as bundle_rows
from controller.entrypoints.reach.port import FoundBrokers, FoundBundles, Row

if TYPE_CHECKING:
    from controller.bundles.bootstrap import Bundles
    from controller.bundles.services.manual_acts import ManualSplit


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

    def answer(self, proposal_ids: Sequence[int], *, refuse: str | None, dry_run: bool) -> Sequence[Row]:
        """See `port.Bundles`. In the name of whoever runs this process, as each change here."""
        from controller.bundles.services import balancer  # it loads what reads reports

        with application() as cleave, stage(cleave, dry_run) as store:
            found = balancer.approve(store, proposal_ids, refuse=refuse, actor=user_name())
        return [bundle_rows.approval_row(row) for row in found]

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

    def split(self, asked: ManualSplit, *, unload: bool, dry_run: bool) -> Row:
        """See `port.Bundles`."""
        from controller.entrypoints.bundles import desk

        with cluster() as bundles:
            return desk.split(bundles, asked, unload=unload, dry_run=dry_run)

    def unload(self, bundle: str, to: str | None, *, dry_run: bool) -> Row:
        """See `port.Bundles`."""
        from controller.entrypoints.bundles import desk

        with cluster() as bundles:
            return desk.unload(bundles, bundle, to, dry_run=dry_run)

    def set_mode(self, namespace: str, to: BalancingMode, *, dry_run: bool) -> Row:
        """See `port.Bundles`."""
        from controller.entrypoints.bundles import desk

        with application() as cleave, stage(cleave, dry_run) as store:
            return desk.set_mode(store, cleave.settings.pulsar_cluster, namespace, to, actor=user_name())

    def split_policy(self, namespace: str) -> PolicyOfNamespace:
        """See `port.Bundles`."""
        return self.change_split_policy(namespace, {}, replace=False, dry_run=True)

    def change_split_policy(
        self, namespace: str, knobs: Mapping[str, Any], *, replace: bool, dry_run: bool
    ) -> PolicyOfNamespace:
        """See `port.Bundles`."""
        with application() as cleave:
            return split_policies.change_split_policy(
                cleave.store,
                cleave.settings.pulsar_cluster,
                namespace,
                knobs,
                actor=user_name(),
                replace=replace,
                dry_run=dry_run,
            )

    def merges(self, namespace: str | None) -> Sequence[Row]:
        """See `port.Bundles`."""
        from controller.entrypoints.bundles import desk

        with application() as cleave:
            return desk.merges(cleave, cleave.settings.pulsar_cluster, namespace)

    def cycle(self, cycle_id: int) -> StoredCycle:
        """See `port.Bundles`."""
        with application() as cleave, cleave.store.transaction() as tx:
            return bundle_cycles.stored_cycle(tx, cycle_id)
