"""Drain watch: counts what is left of sealed segments that are read slowly, so that one that does not move is told from a large one.

A worker counts for the shards it holds, beside its loop. It changes nothing but these counts, which `inspect.buckets` has of what
waits for such segments, too: what is drained, the readers themselves say. Where a data plane gives no count, `inspect.undrained`
goes by the age of the seal.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from controller import telemetry
from controller.clock import Clock
from controller.dataplane.base import DataPlane
from controller.domain.errors import CleaveError
from controller.domain.whole_numbers import MOST
from controller.repeating import repeat_every
from controller.store.postgres.engine import Store
from controller.store.shards import Shards
from controller.store.topics import drain_backlogs
from controller.store.topics.drain_backlogs import SlowDrain

log = telemetry.get_logger(__name__)

INTERVAL_SECONDS = 60.0
SEALED_FOR_SECONDS = 30.0
"""Many segments are drained by then, and are never counted."""
FRESH_FOR_SECONDS = 120.0
"""Most are drained by then: until so long after its seal a segment is counted only where a round has room."""
DRAINS_A_ROUND = 100
ROUND_SECONDS = 20.0
"""No count begins later in a round."""
PARALLEL_CALLS = 4


class DrainWatch:
    """Counts again and again until told to stop."""

    def __init__(
        self,
        store: Store,
        planes: Mapping[str, DataPlane],
        shards: Callable[[], Shards],
        clock: Clock,
        *,
        sealed_for_seconds: float = SEALED_FOR_SECONDS,
    ) -> None:
        self._store, self._planes, self._shards, self._clock = store, planes, shards, clock
        self._sealed_for_seconds = sealed_for_seconds
        self._stopping = threading.Event()

    def run(self) -> None:
        """Rounds until `stop`."""
        repeat_every(INTERVAL_SECONDS, self.round, self._stopping, log, "drains not counted")

    def stop(self) -> None:
        """Leave after the counts in hand."""
        self._stopping.set()

    def round(self) -> int:
        """Count what is slow now; how many were counted. Raises StoreUnavailable."""
        shards = self._shards()
        if not shards.held:
            return 0
        with self._store.transaction() as tx:
            slow = drain_backlogs.slow_drains(
                tx,
                self._planes,
                shards,
                sealed_for_seconds=self._sealed_for_seconds,
                fresh_for_seconds=FRESH_FOR_SECONDS,
                limit=DRAINS_A_ROUND,
            )
        give_up_at = self._clock.monotonic_seconds() + ROUND_SECONDS
        with ThreadPoolExecutor(PARALLEL_CALLS, thread_name_prefix="drain-watch") as calls:
            left = calls.map(lambda one: self._left(one, give_up_at), slow)
            counted = {
                one: messages for one, messages in zip(slow, left, strict=True) if messages is not None
            }
        with self._store.transaction() as tx:
            drain_backlogs.note(tx, counted, shards)
        return len(counted)

    def _left(self, one: SlowDrain, give_up_at: float) -> int | None:
        if self._clock.monotonic_seconds() >= give_up_at or self._stopping.is_set():
            return None
        try:
            left = self._planes[one.data_plane].backlog(one.backing_topic, one.subscription)
            return None if left is None else min(max(left, 0), MOST)
        except CleaveError as error:
            log.warning(
                "what is left of a segment not counted",
                topic_id=one.topic_id,
                subscription=one.subscription,
                segment_id=one.segment_id,
                error=str(error),
            )
            return None
        except Exception:  # the counts of all others would be lost with it
            log.exception(
                "what is left of a segment not counted", topic_id=one.topic_id, segment_id=one.segment_id
            )
            return None
