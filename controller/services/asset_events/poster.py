"""Follows the layout changes of the worker's topics and posts an asset event for each, in a thread of its
own.

No part of the worker waits for the poster or depends on it. It has its own listening connection and a bounded
queue, and writes nothing to the database. While Airflow is unavailable, the poster keeps the newest
`PENDING_AT_MOST` changes. Changes made while the poster did not listen are not posted.
`inspect.layout_changes` has every change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from controller import metrics, telemetry
from controller.domain.errors import CleaveError
from controller.postgres.listener import Listener
from controller.postgres.notification import Notification
from controller.repeating import Repeating, Stoppable
from controller.services.asset_events.airflow import AirflowRest
from controller.store.postgres.engine import Store
from controller.store.shards import Shards
from controller.store.topics import layout_changes as layout_events
from controller.store.topics.layout_changes import LayoutEvent

CHANNELS = ("cleave_layout",)
PENDING_AT_MOST = 1000
"""Maximum number of changes that wait to be posted."""
BATCH = 50
"""Maximum number of changes that are read and posted in one round."""
IDLE_SECONDS = 30.0
"""Longest wait for a notification, and longest pause after an error."""

log = telemetry.get_logger(__name__)


class AssetEventPoster(Stoppable):
    """Posts an asset event for each layout change of one worker's topics. `run` blocks until `stop`."""

    def __init__(
        self, store: Store, listener: Listener, airflow: AirflowRest, *, shards: Callable[[], Shards]
    ) -> None:
        """`listener` listens on `CHANNELS` and is used by this poster alone. `shards` returns the shards that the
        worker holds; only changes of their topics are posted.
        """
        super().__init__(listener.interrupt)
        self._store, self._listener, self._airflow, self._shards = store, listener, airflow, shards
        self._pending: dict[tuple[int, int], None] = {}  # The keys are in the order of arrival.

    def run(self) -> None:
        """Post events until `stop`, and then close the listener. Raises nothing. An error is logged, except an
        expected error with the same text as the previous one. After an expected error (a CleaveError, such as
        a Retryable of Airflow), the pending changes stay and are posted in a later round. After any other error, all pending
        changes are dropped. The poster cannot be run again.
        """
        try:
            Repeating(
                self._round,
                self._stopping,
                log,
                "asset events not posted",
                retry_seconds=(0.0, IDLE_SECONDS),
                longest_pause_seconds=IDLE_SECONDS,
                on_error=self._drop_unpostable,
                says_once=True,
            ).run()
        finally:
            self._listener.close()

    def _round(self) -> float:
        """Wait up to `IDLE_SECONDS` for notifications, or not at all if changes are pending. Queue the changes that
        the notifications name, and post one batch. Return 0: the next round begins at once. Raises StoreUnavailable,
        and the errors of `_post_batch`.
        """
        self._enqueue(self._listener.wait(0.0 if self._pending else IDLE_SECONDS))
        self._post_batch()
        return 0.0

    def _drop_unpostable(self, error: Exception) -> None:
        """Drop all pending changes after an error that is not a CleaveError, because the change that caused the error
        would raise it again and block the changes after it. The dropped changes are not posted later. After a
        CleaveError, which is expected, keep the pending changes.
        """
        if not isinstance(error, CleaveError):
            self._pending.clear()

    def _enqueue(self, notifications: list[Notification]) -> None:
        """Queue the layout changes that the notifications name, if the worker holds the shard of their topic. Other
        notifications are ignored, and so is a resync: changes that were made while the poster did not listen are not
        posted. If more than `PENDING_AT_MOST` changes are then pending, drop the oldest, and count each dropped
        change in the metric.
        """
        shards = self._shards()
        for notification in notifications:
            match notification.ids:
                case (topic_id, epoch) if shards.owns(topic_id):
                    self._pending[topic_id, epoch] = None
        while len(self._pending) > PENDING_AT_MOST:
            del self._pending[next(iter(self._pending))]
            metrics.ASSET_EVENTS.labels(outcome="dropped").inc()

    def _post_batch(self) -> None:
        """Read up to `BATCH` of the oldest pending changes from the database, and post their events in the order of
        the times of the changes. Changes that are not in the database are dropped. An event that Airflow cannot take
        (`AirflowRest.post` returns False) is dropped and counted as unknown; every other event is counted as posted. Does
        nothing without pending changes. Returns early when `stop` is called.

        Raises the errors of `Store.transaction` and of `AirflowRest.post`. The event at which an error occurred, and the
        events after it, stay pending. So an event whose response was lost is posted again.
        """
        batch = list(self._pending)[:BATCH]
        if not batch:
            return
        events = self._store.in_transaction(layout_events.events, batch)
        missing_keys = set(batch) - {(event.topic_id, event.epoch) for event in events}
        for key in missing_keys:
            del self._pending[key]
        for event in events:
            if self._stopping.is_set():
                return
            is_known = self._airflow.post(event.topic, document(event))
            del self._pending[event.topic_id, event.epoch]
            metrics.ASSET_EVENTS.labels(outcome="posted" if is_known else "unknown").inc()


def document(event: LayoutEvent) -> dict[str, Any]:
    """Return the `extra` of the asset event: the layout change as a JSON document, which DAGs read."""
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
