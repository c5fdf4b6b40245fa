"""Composition root of bundle balancing: gives each service one cluster's reader and acts and this process's settings.

The counterpart of `controller.bootstrap` for `cleave bundles` and the tasks of its DAGs. Building it touches no
network. What reads reports is imported where it is used, so that a command that only shows something does not wait for its
libraries.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from controller.bootstrap import Application, process_name, pulsar_access
from controller.bundles.brokers import BundleActs, BundleReader
from controller.bundles.domain.balancing.settings import BalanceSettings, validate
from controller.bundles.domain.ring.bundle import NamespaceBundle
from controller.bundles.domain.splitting.algorithms.base import SplitPlan
from controller.bundles.domain.splitting.algorithms.refusal import CutRefusal
from controller.bundles.domain.splitting.algorithms.registry import SPLIT_ALGORITHMS
from controller.bundles.services.manual_acts import ManualSplit, check_manual_unload, plan_manual_split
from controller.clock import SystemClock
from controller.dataplane.pulsar.admin import bearer_session
from controller.dataplane.pulsar_load.brokers import BrokerList
from controller.domain.errors import InvalidInput
from controller.settings import Settings
from controller.store.postgres.engine import BULK_STATEMENT_SECONDS, Store

if TYPE_CHECKING:
    from controller.bundles.reports import ReportArea
    from controller.bundles.services.aggregation import BundleAggregation
    from controller.bundles.services.balancer import ActReport, ProposedCycle
    from controller.bundles.services.collector import BundleCollector
    from controller.bundles.store.proposals import ProposalRow


@dataclass(frozen=True)
class Bundles:
    """One cluster, and every service on it with the settings in force. See the services for what they raise."""

    settings: Settings
    store: Store
    reader: BundleReader
    acts: BundleActs

    @cached_property
    def area(self) -> ReportArea:
        """Where the reports of brokers land."""
        from controller.bundles.reports import ReportArea

        return ReportArea(self.settings.bundle_reports_location)

    @property
    def cluster(self) -> str:
        """Pulsar's name of the cluster."""
        return self.reader.cluster

    def collector(self, interval_seconds: float) -> BundleCollector:
        """A collector that reads the cluster's brokers at that interval."""
        from controller.bundles.services.collector import BundleCollector

        name = process_name().replace(":", "-").lstrip("-")
        return BundleCollector(
            [self.reader], self.area, name=name, interval_seconds=interval_seconds, clock=SystemClock()
        )

    def aggregate(self, run_id: str, window_end_ms: int | None = None) -> BundleAggregation:
        """Load of the window that ends now, or at `window_end_ms`, on Spark, as the loader."""
        from controller.bundles.services.aggregation import aggregate, window_ending_at

        end_ms = window_end_ms or SystemClock().now_ms()
        window = window_ending_at(end_ms, self.settings.bundle_window_seconds)
        store = Store(
            self.settings.loader_dsn,
            application_name="cleave-bundle-load",
            pool_size=1,
            statement_seconds=BULK_STATEMENT_SECONDS,
        )
        try:
            return aggregate(store, self.area, self.settings.spark_master, window, run_id=run_id)
        finally:
            store.dispose()

    def propose(self, request_key: str, decided_by: str) -> ProposedCycle:
        """Decide one cycle and record it."""
        from controller.bundles.services import balancer

        return balancer.propose(
            self.store,
            self.reader,
            self.area,
            settings=balance_settings(self.settings),
            request_key=request_key,
            decided_by=decided_by,
        )

    def apply(self, cycle_id: int | None, claimant: str) -> list[ActReport]:
        """Carry out what is approved, and what `cycle_id` proposed in automatic namespaces."""
        from controller.bundles.services import balancer
        from controller.bundles.services.balancer import ApplySettings

        limits = ApplySettings(
            max_splits=self.settings.bundle_max_splits, max_unloads=self.settings.bundle_max_unloads
        )
        return balancer.apply(
            self.store,
            self.acts,
            cluster=self.cluster,
            cycle_id=cycle_id,
            settings=limits,
            claimant=claimant,
        )

    def waiting(self, cycle_id: int | None) -> list[ProposalRow]:
        """What `apply` would carry out."""
        from controller.bundles.services import balancer

        return balancer.waiting(self.store, cluster=self.cluster, cycle_id=cycle_id)

    def verify(self, claimant: str) -> list[ActReport]:
        """Read whether what was applied holds."""
        from controller.bundles.services import balancer

        return balancer.verify(self.store, self.reader, claimant=claimant)

    def plan_split(self, asked: ManualSplit) -> SplitPlan | CutRefusal:
        """Where a split by hand would cut."""
        named = self.settings.bundle_split_algorithms
        allowed = list(SPLIT_ALGORITHMS) if "all" in named else named
        return plan_manual_split(self.store, self.reader, asked, allowed=allowed)

    def check_unload(self, bundle: str, destination: str | None) -> tuple[NamespaceBundle, str | None]:
        """The bundle that an unload by hand would take, and its owner."""
        return check_manual_unload(self.store, self.reader, bundle, destination)


@contextmanager
def bundles_of(app: Application) -> Iterator[Bundles]:
    """The cluster that the settings name. Raises InvalidInput if they name none."""
    settings = app.settings
    access = pulsar_access(settings)
    if access is None:
        raise InvalidInput("no cluster to look at: set CLEAVE_PULSAR_ADMIN_URL (and CLEAVE_PULSAR_CLUSTER)")
    session, admin_url = bearer_session(access), access.admin_urls[0]
    brokers = BrokerList(
        session,
        access.admin_urls,
        cluster=settings.pulsar_cluster,
        broker_url=settings.pulsar_broker_url,
    )
    reader = BundleReader(
        session,
        admin_url,
        brokers,
        cluster=settings.pulsar_cluster,
        deadline_seconds=settings.call_timeout_seconds,
    )
    try:
        yield Bundles(
            settings,
            app.store,
            reader,
            BundleActs(session, admin_url, reader),
        )
    finally:
        session.close()


def balance_settings(settings: Settings) -> BalanceSettings:
    """The parameters in force. Raises InvalidPolicy naming the one that is wrong."""
    found = BalanceSettings.from_document(settings.bundle_balance)
    validate(found)
    return found
