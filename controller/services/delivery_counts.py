"""Counts deliveries of messages across crashes, for consumers that request it. Any worker can serve the
requests, because the rows check who owns which bucket.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sqlalchemy import Connection

from controller.domain.deliveries import DeliveryEvent
from controller.store.postgres.engine import Store
from controller.store.topics import consumers, deliveries
from controller.store.topics.deliveries import MessageDelivery, Ownership


class DeliveryCounts:
    """Records deliveries. Thread-safe. Each call is one short transaction."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def opened(self, ownership: Ownership, position: Sequence[int]) -> tuple[int, list[MessageDelivery]]:
        """Begin to count the bucket's deliveries from `position`, as `deliveries.open_bucket` does, and
        return its result. Raises AccessForbidden for a consumer of another subject, and the errors of that
        function.
        """
        with self._as_owner(ownership) as tx:
            return deliveries.open_bucket(tx, ownership, position)

    def closed(self, ownership: Ownership) -> None:
        """End the counting of the bucket's deliveries, as `deliveries.close_bucket` does. Raises
        AccessForbidden for a consumer of another subject, and the errors of that function.
        """
        with self._as_owner(ownership) as tx:
            deliveries.close_bucket(tx, ownership)

    def note(
        self,
        ownership: Ownership,
        position: Sequence[int],
        event: DeliveryEvent,
        times: int,
        error: str | None,
    ) -> None:
        """Record an event of the message's delivery number `times`, as `deliveries.note` does. Idempotent.
        Raises AccessForbidden for a consumer of another subject, and the errors of that function.
        """
        with self._as_owner(ownership) as tx:
            deliveries.note(tx, ownership, position, event, times, error)

    @contextmanager
    def _as_owner(self, ownership: Ownership) -> Iterator[Connection]:
        """Open a transaction. Raises AccessForbidden if the consumer's session was begun with the token of
        another subject.
        """
        key = ownership.key
        with self._store.transaction() as tx:
            consumers.demand_owner(tx, key.topic_id, key.name, ownership.consumer, ownership.subject)
            yield tx
