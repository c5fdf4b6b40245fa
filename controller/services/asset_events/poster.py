"""Follows the layout changes of the worker's topics and posts an asset event for each, on a thread of its own.

Nothing of the worker waits for it or depends on it. It has its own connection to listen on and a bounded queue, and
writes nothing down. While Airflow is away the youngest `PENDING_AT_MOST` changes are kept. What changed while nobody
listened is not posted at all. `inspect.layout_changes` has every change.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

from controller import metrics, telemetry
from controller.domain.errors import CleaveError
from controller.postgres.listener import Listener
from controller.postgres.notification import Notification
from controller.repeating import Repeating
from controller.store.postgres.engine import Store
from controller.store.shards import Shards
from controller.store.topics import layout_changes as layout_events
from controller.store.topics.layout_changes import LayoutEvent

CHANNELS = ("cleave_layout",)
PENDING_AT_MOST = 1000
BATCH = 50
IDLE_SECONDS = 30.0

log = telemetry.get_logger(__name__)


class Assets(Protocol):
    """Where events are posted: `AirflowRest`, or in tests one that fails."""

    def post(self, partition_key: str, extra: dict[str, Any]) -> bool: ...


class AssetEventPoster:
    """One for a worker; `run` blocks until `stop`."""

    def __init__(
        self, store: Store, listener: Listener, assets: Assets, *, shards: Callable[[], Shards]
    ) -> None:
        """`listener` listens on `CHANNELS` and is used by this poster alone; topics of `shards` are posted."""
        self._store, self._listener, self._assets, self._shards = store, listener, assets, shards
        self._pending: dict[tuple[int, int], None] = {}  # in the order of arrival
        self._stopping = threading.Event()

    def run(self) -> None:
        """Post until `stop`. Raises nothing: what goes wrong is logged and tried again or dropped."""
        try:
            Repeating(
                self._round,
                self._stopping,
                log,
                "asset events wait",
                retry_seconds=(0.0, IDLE_SECONDS),
                longest_pause_seconds=IDLE_SECONDS,
                on_error=self._drop_unpostable,
                says_once=True,
            ).run()
        finally:
            self._listener.close()

    def _round(self) -> float:
        """Wait for changes, and post some; the next round comes at once."""
        self._hear(self._listener.wait(0.0 if self._pending else IDLE_SECONDS))
        self._post_some()
        return 0.0

    def _drop_unpostable(self, error: Exception) -> None:
        """Drop all changes after an unexpected error: the change at fault would raise it again, and hold up the changes behind it."""
        if not isinstance(error, CleaveError):
            self._pending.clear()

    def stop(self) -> None:
        """Leave after the call in hand. Safe to call from a signal handler."""
        self._stopping.set()
        self._listener.interrupt()

    def _hear(self, notifications: list[Notification]) -> None:
        """Remember the changes of our shards, up to the bound. The oldest are dropped first."""
        shards = self._shards()
        for notification in notifications:
            match notification.ids:
                case (topic_id, epoch) if shards.owns(topic_id):
                    self._pending[topic_id, epoch] = None
        while len(self._pending) > PENDING_AT_MOST:
            del self._pending[next(iter(self._pending))]
            metrics.ASSET_EVENTS.labels(outcome="dropped").inc()

    def _post_some(self) -> None:
        """A batch, in the order of commits. One whose answer is lost is posted again, later."""
        batch = list(self._pending)[:BATCH]
        if not batch:
            return
        with self._store.transaction() as tx:
            found = layout_events.events(tx, batch)
        gone = set(batch) - {(event.topic_id, event.epoch) for event in found}
        for key in gone:
            del self._pending[key]
        for event in found:
            if self._stopping.is_set():
                return
            is_known = self._assets.post(event.topic, document(event))
            del self._pending[event.topic_id, event.epoch]
            metrics.ASSET_EVENTS.labels(outcome="posted" if is_known else "unknown").inc()


def document(event: LayoutEvent) -> dict[str, Any]:
    """The event's `extra`: what a DAG reads of it."""
    return {
        "topic": event.topic,
        "epoch": event.epoch,
        "kind": event.kind,
        "operation_id": event.operation_id,
        "origin": event.origin,
        "actor": event.actor,
        "reason": event.reason,
        "committed_at": event.committed_at.isoformat(),
        "sealed": list(event.sealed),
        "created": list(event.created),
    }
