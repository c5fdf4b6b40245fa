"""Counts deliveries over crashes for the consumers that ask: any worker may, since the rows check who owns what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sqlalchemy import Connection

from controller.domain.deliveries import DeliveryEvent
from controller.store.postgres.engine import Store
from controller.store.topics import consumers, deliveries
from controller.store.topics.deliveries import MessageDelivery, Ownership


class DeliveryCounts:
    """For any thread. Each call is one short transaction."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def opened(self, ownership: Ownership, position: Sequence[int]) -> tuple[int, list[MessageDelivery]]:
        """See `deliveries.open_bucket`."""
        with self._as_owner(ownership) as tx:
            return deliveries.open_bucket(tx, ownership, position)

    def closed(self, ownership: Ownership) -> None:
        """See `deliveries.close_bucket`."""
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
        """See `deliveries.note`."""
        with self._as_owner(ownership) as tx:
            deliveries.note(tx, ownership, position, event, times, error)

    @contextmanager
    def _as_owner(self, ownership: Ownership) -> Iterator[Connection]:
        """A transaction. Raises AccessForbidden where another subject's token began the consumer's session."""
        key = ownership.key
        with self._store.transaction() as tx:
            consumers.demand_owner(tx, key.topic_id, key.name, ownership.consumer, ownership.subject)
            yield tx
