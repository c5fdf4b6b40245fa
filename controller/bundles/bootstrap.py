"""Composition root of bundle balancing: builds the services of one Pulsar cluster from the settings.

It is the counterpart of `controller.bootstrap` for `cleave bundles` and the tasks of its DAGs. Building the services sends no request.
Modules that read reports are imported where they are used, so that other commands do not load their libraries.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from secrets import SystemRandom
from typing import TYPE_CHECKING

from controller.bootstrap import Application, file_name_part, process_name, pulsar_access
from controller.bundles.brokers import BundleActions, BundleReader
from controller.bundles.domain.balancing.settings import BalanceSettings, validate
from controller.bundles.domain.ring import NamespaceBundle, NamespaceBundles
from controller.bundles.domain.splitting.algorithms.base import CutRefusal, SplitPlan
from controller.bundles.domain.splitting.policy import SPLIT_ALGORITHMS
from controller.bundles.services.manual_actions import ManualSplit, check_manual_unload, plan_manual_split
from controller.bundles.store.namespaces import NamespaceRow, list_namespaces
from controller.clock import SystemClock, to_ms
from controller.dataplane.pulsar.admin import bearer_session
from controller.dataplane.pulsar_load.brokers import BrokerList
from controller.domain.errors import InvalidInput, StoreUnavailable
from controller.postgres.session_settings import BULK_STATEMENT_SECONDS
from controller.settings import Settings
from controller.store.postgres.engine import Store

if TYPE_CHECKING:
    from controller.bundles.broker_reports import ReportArea
    from controller.bundles.services.aggregation import BundleAggregation
    from controller.bundles.services.balancer import ActReport, ProposedCycle
    from controller.bundles.services.collector import BundleCollector
    from controller.bundles.store.proposals import ProposalRow


@dataclass(frozen=True)
class Bundles:
    """The services of one cluster, with the settings in force. The methods raise the errors of the services."""

    settings: Settings
    store: Store
    reader: BundleReader
    acts: BundleActions

    @cached_property
    def area(self) -> ReportArea:
        """Directory of the reports of brokers."""
        from controller.bundles.broker_reports import ReportArea

        return ReportArea(self.settings.bundle_reports_location)

    @property
    def cluster(self) -> str:
        """Pulsar's name of the cluster."""
        return self.reader.cluster

    def collector(self, interval_seconds: float = 30.0) -> BundleCollector:
        """Return a collector, not started, that reads the brokers of the cluster at the interval and writes their reports to `area`. It knows
        the stored boundaries, and none if the database is unavailable. Raises InvalidInput for an interval of 0 s or less.
        """
        from controller.bundles.services.collector import BundleCollector

        return BundleCollector(
            self.reader,
            self.area,
            name=file_name_part(process_name()),
            interval_seconds=interval_seconds,
            clock=SystemClock(),
            known=self._stored_boundaries(),
        )

    def _stored_boundaries(self) -> list[tuple[NamespaceBundles, int]]:
        """Return the stored boundaries of the cluster's namespaces, each with the time of the read in milliseconds since the Unix epoch, in
        random order. Empty if the database is unavailable.
        """
        rows: list[NamespaceRow] = []
        with suppress(StoreUnavailable), self.store.transaction() as tx:
            rows = list_namespaces(tx, self.cluster)
        # The order of the times would have each process read the same few namespaces again: reads that find no change are not stored.
        SystemRandom().shuffle(rows)
        return [(row.bundles, to_ms(row.boundaries_at)) for row in rows]

    def aggregate(self, run_id: str) -> BundleAggregation:
        """Aggregate the window of `bundle_window_seconds` that ends now on Spark, and merge the result into PostgreSQL with the login of
        the loader.

        `applied` of the result is False if nothing was merged: no file of brokers landed, or this run, this window or a
        later one was merged before. Files that are not reports are quarantined in any case. After a merge, the topics
        of hot bundles are stored in `area`. Raises StoreUnavailable, OSError if the storage of the reports does not
        answer, InvalidInput for a window of 0 s or less, and the errors of the Spark session. The call opens a
        connection pool of its own and closes it.
        """
        from controller.bundles.services.aggregation import aggregate, window_ending_at

        window = window_ending_at(SystemClock().now_ms(), self.settings.bundle_window_seconds)
        store = Store(
            self.settings.loader_dsn,
            application_name="cleave-bundle-load",
            pool_size=1,
            statement_seconds=BULK_STATEMENT_SECONDS,
        )
        try:
            return aggregate(
                store,
                self.area,
                self.settings.spark_master,
                window,
                run_id=run_id,
                spark_conf=self.settings.spark_conf,
            )
        finally:
            store.dispose()

    def propose(self, request_key: str, decided_by: str) -> ProposedCycle:
        """Decide a cycle of the cluster, and record the cycle with its proposals. Changes no broker. If the cluster has
        a cycle of `request_key`, return that cycle, with `is_repeat` True and counts of 0. `decided_by` is the actor
        that is recorded. Raises InvalidPolicy for invalid settings, LostRace after four attempts that other cycles
        interrupted, Conflict if another call with `request_key` records its cycle at the same time or another cluster
        has a cycle of `request_key`, StoreUnavailable, OSError or pyarrow's ArrowException if the storage of the
        reports does not answer or a file cannot be read, and Retryable or Terminal if brokers do not answer or refuse
        to answer.
        """
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
        """Approve proposals of `cycle_id` in automatic namespaces (None: approve none), and apply approved proposals,
        both up to `bundle_max_splits` splits and `bundle_max_unloads` unloads; calls for the same cycle share these
        limits. Return a report for each claimed proposal. `cycle_id` must be a cycle of the cluster. `claimant` names
        the process in the claims.

        Proposals that were approved more than an hour ago and are not being applied, and approved merges, are refused. Approved proposals
        of namespaces in dry run are left. An action that fails is recorded and raises no error. Raises StoreUnavailable, and LostRace if
        another process has changed a claimed proposal.
        """
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
        """Return the proposals that `apply` may apply: approved ones, and those of the cycle in automatic namespaces. `cycle_id` None:
        approved ones only. Merges and stale proposals are left out. `apply` may apply fewer, because of its limits and because it skips
        claimed proposals and namespaces in dry run.
        """
        from controller.bundles.services import balancer

        return balancer.waiting(self.store, cluster=self.cluster, cycle_id=cycle_id)

    def verify(self, claimant: str) -> list[ActReport]:
        """Verify up to 100 applied proposals against the cluster. Return a report for each claimed proposal. `claimant` names the
        process in the claims. A proposal that cannot be judged yet stays applied. Raises StoreUnavailable, and LostRace if another process
        has changed a claimed proposal.
        """
        from controller.bundles.services import balancer

        return balancer.verify(self.store, self.reader, claimant=claimant)

    def plan_split(self, split: ManualSplit) -> SplitPlan | CutRefusal:
        """Return the cuts that a manual split would make, or the refusal of the algorithm. The setting `bundle_split_algorithms` names
        the allowed algorithms (`all`: each). Splits nothing. Raises Unsupported for an algorithm that is not allowed, Conflict if the
        namespace would exceed its maximum number of bundles, InvalidInput for wrong options, NotFound or BundleNotFound for an unknown
        namespace or bundle, and Retryable or Terminal if brokers do not answer or refuse to answer.
        """
        named = self.settings.bundle_split_algorithms
        allowed = list(SPLIT_ALGORITHMS) if "all" in named else named
        return plan_manual_split(self.store, self.reader, split, allowed=allowed)

    def check_unload(self, bundle: str, destination: str | None) -> tuple[NamespaceBundle, str | None]:
        """Return the bundle that a manual unload would unload, and its owner; None if no broker owns it. Unloads nothing. `bundle` is the
        text of a bundle, or a namespace followed by /LARGEST or /HOT. Raises InvalidInput for a wrong text, and for a destination that is
        not active or that an isolation policy forbids; NotFound or BundleNotFound for an unknown namespace or bundle; and Retryable or
        Terminal if brokers do not answer or refuse to answer.
        """
        return check_manual_unload(self.store, self.reader, bundle, destination)


@contextmanager
def bundles_of(app: Application) -> Iterator[Bundles]:
    """Open the services of the cluster in the settings, and close the HTTP session at the end of the block.

    Sends no request itself. Raises InvalidInput if the settings name no cluster, or for an invalid pattern of broker addresses
    (`pulsar_broker_url`).
    """
    settings = app.settings
    access = pulsar_access(settings)
    if access is None:
        raise InvalidInput(
            "no Pulsar cluster is set; set CLEAVE_PULSAR_ADMIN_URL (and CLEAVE_PULSAR_CLUSTER)"
        )
    session = bearer_session(access)
    brokers = BrokerList(
        session,
        access.admin_urls,
        cluster=settings.pulsar_cluster,
        broker_url=settings.pulsar_broker_url,
    )
    reader = BundleReader(
        session,
        brokers,
        cluster=settings.pulsar_cluster,
        deadline_seconds=settings.call_timeout_seconds,
    )
    try:
        yield Bundles(
            settings,
            app.store,
            reader,
            BundleActions(session, reader),
        )
    finally:
        session.close()


def balance_settings(settings: Settings) -> BalanceSettings:
    """Return the parameters of balancing in force: those of the setting `bundle_balance`, and the defaults of the others. Raises
    InvalidPolicy, which names the invalid parameters.
    """
    parameters = BalanceSettings.from_document(settings.bundle_balance)
    validate(parameters)
    return parameters
