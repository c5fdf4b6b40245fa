"""Verifier: compares the logs of topics with the journal whenever the database came back as another one.

Runs in a thread of the worker that holds the topics' shards. Until a topic is verified no reshape of it is intended, nothing of
it is pruned and no consumer begins a session on it; operations that were intended before go on meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from controller import telemetry
from controller.dataplane.base import DataPlane
from controller.repeating import Repeating
from controller.services.reconciler.reconcile import verify_topics
from controller.store.postgres.engine import Store
from controller.store.shards import Shards

log = telemetry.get_logger(__name__)

INTERVAL_SECONDS = 1.0
"""An index answers whether a topic is unverified."""
LONGEST_INTERVAL_SECONDS = 30.0
"""Rounds that verify nothing, since a data plane does not answer or topics are held, come ever more rarely."""


class Verifier:
    """Looks for unverified topics again and again until `stop`."""

    def __init__(
        self,
        store: Store,
        planes: Mapping[str, DataPlane],
        shards: Callable[[], Shards],
        on_verified: Callable[[], None],
    ) -> None:
        """`on_verified` is called, in the verifier's thread, when topics may be acted on again."""
        self._store, self._planes, self._shards, self._on_verified = store, planes, shards, on_verified
        self._stopping = threading.Event()
        self._interval_seconds = INTERVAL_SECONDS

    def run(self) -> None:
        """Rounds until `stop`. A round that verified topics is followed by the next one at once."""
        retry_seconds = (INTERVAL_SECONDS, INTERVAL_SECONDS)
        Repeating(
            self._paced_round, self._stopping, log, "topics not verified", retry_seconds=retry_seconds
        ).run()

    def _paced_round(self) -> float:
        """A round; then the seconds until the next one."""
        found, verified = self.round()
        if verified:
            log.info("topics verified", topics=verified)
            self._on_verified()
            return 0.0
        self._interval_seconds = (
            min(2 * self._interval_seconds, LONGEST_INTERVAL_SECONDS) if found else INTERVAL_SECONDS
        )
        return self._interval_seconds

    def stop(self) -> None:
        """Leave after the present round."""
        self._stopping.set()

    def round(self) -> tuple[int, int]:
        """Compare some unverified topics; return how many there were, and how many are verified now. Raises StoreUnavailable."""
        shards = self._shards()
        return verify_topics(self._store, self._planes, shards=shards) if shards.held else (0, 0)
