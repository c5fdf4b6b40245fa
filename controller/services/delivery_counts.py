"""Counts deliveries of messages across crashes, for consumers that request it. Any worker can serve the
requests, because the rows check who owns which bucket. Each call is one short transaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sqlalchemy import Connection

from controller.domain.delivery_events import DeliveryEvent
from controller.store.postgres.engine import Store
from controller.store.topics import consumers, deliveries
from controller.store.topics.deliveries import MessageDelivery, Ownership


def opened(store: Store, ownership: Ownership, position: Sequence[int]) -> tuple[int, list[MessageDelivery]]:
    """Record that the owner begins to read its bucket at the message `position`. Return the number of
    successive incarnations, this one included, that began at this position, and the recorded deliveries of
    messages from the position on, at most `deliveries.MOST_TROUBLED`. Deletes the records of messages before
    the position; a message that another incarnation began to handle, and neither ended nor reported as failed,
    counts one more death. Raises LostRace if the incarnation does not own the bucket, and AccessForbidden for
    a consumer of another subject.
    """
    with _as_owner(store, ownership) as tx:
        return deliveries.open_bucket(tx, ownership, position)


def closed(store: Store, ownership: Ownership) -> None:
    """Record that the owner has ended its work in the bucket without a crash, which resets the number of
    successive incarnations to 1. Does nothing if another incarnation has opened the bucket since. Raises
    AccessForbidden for a consumer of another subject.
    """
    with _as_owner(store, ownership) as tx:
        deliveries.close_bucket(tx, ownership)


def note(
    store: Store,
    ownership: Ownership,
    position: Sequence[int],
    event: DeliveryEvent,
    times: int,
    error: str | None,
) -> None:
    """Record an event of delivery number `times` of the message at `position`. `error` is the text of a
    failure; None keeps the stored text. The event ENDED deletes the record of the message. Idempotent. Raises
    LostRace if the incarnation does not own the bucket, and AccessForbidden for a consumer of another subject.
    """
    with _as_owner(store, ownership) as tx:
        deliveries.note(tx, ownership, position, event, times, error)


@contextmanager
def _as_owner(store: Store, ownership: Ownership) -> Iterator[Connection]:
    """Open a transaction. Raises AccessForbidden if the consumer's session was begun with the token of
    another subject; without a token, nothing is checked.
    """
    key = ownership.key
    with store.transaction() as tx:
        consumers.demand_owner(tx, key.topic_id, key.name, ownership.consumer, ownership.subject)
        yield tx
