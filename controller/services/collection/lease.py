"""The right to collect, as a lease, and the collection while a process holds it: of several processes with the same
topics and data planes, one reads the brokers.

The process that holds the lease renews it before each tick. The other processes wait, and one of them takes the lease
once it has expired or was resigned. Rates are right even if two processes collect for a moment, because samples name
their reader.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from controller import telemetry
from controller.clock import Clock
from controller.domain.errors import StoreUnavailable
from controller.services.collection.consumer_watch import ConsumerWatch
from controller.services.collection.load_collector import LoadCollector
from controller.store import leases
from controller.store.leases import Lease
from controller.store.postgres.engine import Store

log = telemetry.get_logger(__name__)


class CollectionLease:
    """The right of one process to collect. One thread calls `take` and `resign`; any thread may read
    `is_held`.
    """

    def __init__(
        self,
        store: Store,
        holder: str,
        incarnation: str | None = None,
        *,
        prefix: str,
        data_planes: Iterable[str],
        ttl_seconds: float,
        clock: Clock,
    ) -> None:
        """Processes with equal `prefix` and `data_planes` compete for the lease, which expires `ttl_seconds` after its
        last renewal. `holder` and `incarnation` name this process; a worker that resigns its leases resigns this lease
        as well. The database is not accessed before `take`.
        """
        self._store, self._holder, self._incarnation = store, holder, incarnation
        self._name = f"collector/{'+'.join(sorted(data_planes))}/{prefix}"
        self._ttl_seconds, self._clock = ttl_seconds, clock
        self._lease: Lease | None = None
        self._trusted_until = 0.0

    @property
    def is_held(self) -> bool:
        """True while this process holds the lease by its own clock."""
        return self._lease is not None and self._clock.monotonic_seconds() < self._trusted_until

    def take(self) -> int | None:
        """Renew the lease if this process holds it, or take the lease if it is free, for `ttl_seconds` from now, and
        return the number of its term, which grows each time the lease is taken. Return None while another process holds
        the lease, also a process with the same holder name and another incarnation. A gain and a loss are logged. Raises
        StoreUnavailable; `is_held` then stays as it is until the lease expires by the clock of this process.
        """
        began_at = self._clock.monotonic_seconds()
        previous_lease = self._lease
        lease = self._store.in_transaction(
            leases.renew_or_acquire, self._name, self._holder, self._ttl_seconds, self._incarnation
        )
        self._lease, self._trusted_until = lease, began_at + self._ttl_seconds
        if (lease is None) != (previous_lease is None):
            log.info("collection acquired" if lease else "collection lost", lease=self._name)
        return None if lease is None else lease.term

    def resign(self) -> None:
        """Free the lease, so that another process need not wait for its expiry. `is_held` is False afterwards, in any
        case. Does nothing if the last `take` did not get the lease. If the database is unavailable, no error is
        raised, and the lease expires by itself.
        """
        lease, self._lease = self._lease, None
        if lease is not None:
            with suppress(StoreUnavailable), self._store.transaction() as tx:
                leases.resign(tx, lease)


class LeasedCollection:
    """A load collector and a consumer watch under one lease. `run` blocks until `stop`, which any thread may call."""

    def __init__(self, collector: LoadCollector, watch: ConsumerWatch, lease: CollectionLease) -> None:
        self._collector, self._watch, self._lease = collector, watch, lease

    def run(self) -> None:
        """Run the load collector in this thread, and the consumer watch in another thread if a data plane can
        list consumers, until `stop`. Resign the lease at the end.
        """
        with telemetry.bound(collector=self._collector.name):
            watch_thread = (
                telemetry.start_thread("consumers", self._watch.run) if self._watch.can_observe else None
            )
            try:
                self._collector.run()
            finally:
                self._watch.stop()
                if watch_thread is not None:
                    watch_thread.join()
                self._lease.resign()

    def stop(self) -> None:
        """Make `run` return after the current tick. Safe in a signal handler."""
        self._watch.stop()
        self._collector.stop()
