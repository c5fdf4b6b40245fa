"""Verifier: compares the logs of topics with the journal whenever the database was restarted, promoted or
restored.

Runs in a thread of the worker that holds the topics' shards. Until a topic is verified, no reshape of it is
intended, no segment is pruned and no consumer begins a session. Operations that were intended before
continue.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from controller import telemetry
from controller.dataplane.base import DataPlane
from controller.repeating import Repeating, Stoppable
from controller.services.reconciler.reconcile import verify_topics
from controller.store.postgres.engine import Store
from controller.store.shards import Shards

log = telemetry.get_logger(__name__)

INTERVAL_SECONDS = 1.0
"""Seconds between two rounds. An index answers whether a topic is unverified."""
LONGEST_INTERVAL_SECONDS = 30.0
"""Maximum seconds between two rounds. The interval grows while rounds verify no topic because a data plane
does not answer or topics are held.
"""


class Verifier(Stoppable):
    """A background service that compares the logs of unverified topics with the journal, and repairs
    differences, until `stop`.
    """

    def __init__(
        self,
        store: Store,
        planes: Mapping[str, DataPlane],
        shards: Callable[[], Shards],
        on_verified: Callable[[], None],
    ) -> None:
        """`shards` returns the shards whose topics are verified. `on_verified` is called in the verifier's
        thread when topics were verified.
        """
        super().__init__()
        self._store, self._planes, self._shards, self._on_verified = store, planes, shards, on_verified
        self._interval_seconds = INTERVAL_SECONDS
        self._tried: set[int] = set()
        """Topics that stayed unverified since the last round that found no other unverified topic."""

    def run(self) -> None:
        """Run rounds until `stop`. After a round that compared topics, the next round begins at once. Errors
        are logged and the round is repeated.
        """
        retry_seconds = (INTERVAL_SECONDS, INTERVAL_SECONDS)
        Repeating(
            self._paced_round, self._stopping, log, "topics not verified", retry_seconds=retry_seconds
        ).run()

    def _paced_round(self) -> float:
        """Run a round, and return the seconds until the next round. If topics were verified, log their number and
        call `on_verified`. After a round that found unverified topics, the next round begins at once, with other
        topics.

        When all were tried, the seconds are `INTERVAL_SECONDS` if none stayed unverified, otherwise twice the last
        such pause, up to `LONGEST_INTERVAL_SECONDS`; then the topics are tried again. Raises the errors of `round`.
        """
        unverified, verified = self.round()
        if verified:
            log.info("topics verified", topics=verified)
            self._on_verified()
        if unverified:
            return 0.0
        self._interval_seconds = (
            min(2 * self._interval_seconds, LONGEST_INTERVAL_SECONDS) if self._tried else INTERVAL_SECONDS
        )
        self._tried.clear()
        return self._interval_seconds

    def round(self) -> tuple[int, int]:
        """Compare the logs of unverified topics of the held shards that were not tried yet with the journal, and
        repair the differences. Return the number of compared topics, and how many of them are verified afterwards; both are 0 if the worker
        holds no shard or no topic is unverified. A topic that cannot be compared is logged. Only errors of the store
        are raised, such as StoreUnavailable.
        """
        shards = self._shards()
        if not shards.held:
            return 0, 0
        return verify_topics(self._store, self._planes, shards=shards, tried=self._tried)
