"""Takes samples and observes consumers while this process holds the lease of the collection."""

from __future__ import annotations

from controller import telemetry
from controller.services.collection.consumer_watch import ConsumerWatch
from controller.services.collection.lease import CollectionLease
from controller.services.collection.load_collector import LoadCollector


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
