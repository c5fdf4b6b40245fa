"""Deliveries that are counted over crashes: where each bucket's reading began, and the messages that fail or kill (sql/schema/26_deliveries.sql).

Only a bucket's present owner changes anything: each call names the consumer's life and the generation of its ownership.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, text

from controller.domain.deliveries import DeliveryEvent
from controller.domain.errors import LostRace
from controller.store.topics.bucket_owners import SubscriptionKey


@dataclass(frozen=True, slots=True)
class Ownership:
    """One ownership of one bucket, as the consumer that has it names it."""

    key: SubscriptionKey
    consumer: str
    incarnation: str
    segment_id: int
    bucket_start: int
    generation: int
    subject: str | None = None
    """Subject of the token that says so."""

    @property
    def parameters(self) -> dict[str, object]:
        """For the functions of the migration."""
        return {
            **self.key.parameters,
            "segment_id": self.segment_id,
            "bucket_start": self.bucket_start,
            "consumer": self.consumer,
            "incarnation": self.incarnation,
            "generation": self.generation,
        }


@dataclass(frozen=True, slots=True)
class MessageDelivery:
    """A message that failed, or was begun and not heard of again."""

    position: Sequence[int]
    deliveries: int
    deaths: int
    error: str | None


MOST_TROUBLED = 1000
"""Messages of a bucket that are remembered, as `cleave.note_delivery` bounds them; as many as a consumer holds by default."""
LONGEST_ERROR = 200
"""Characters of an error in the answer to a bucket's next reader."""
_OPEN = """
    SELECT cleave.open_bucket(:topic_id, :subscription, :segment_id, :bucket_start, :consumer, :incarnation, :generation,
                              CAST(:position AS bigint[]))
"""
_CLOSE = "SELECT cleave.close_bucket(:topic_id, :subscription, :segment_id, :bucket_start, :incarnation)"
_TROUBLED = """
    SELECT position, deliveries, deaths, left(error, :longest_error) FROM cleave.message_delivery
     WHERE topic_id = :topic_id AND subscription = :subscription AND segment_id = :segment_id AND bucket_start = :bucket_start
     ORDER BY position LIMIT :most
"""
_NOTE = """
    SELECT cleave.note_delivery(:topic_id, :subscription, :segment_id, :bucket_start, :consumer, :incarnation, :generation,
                                CAST(:position AS bigint[]), :event, :deliveries, :error)
"""


def open_bucket(
    tx: Connection, ownership: Ownership, position: Sequence[int]
) -> tuple[int, list[MessageDelivery]]:
    """Reading begins at this message: how many lives of consumers in turn have begun there, and the messages from there on that are
    known. Raises LostRace for who does not own the bucket.
    """
    parameters = {**ownership.parameters, "position": list(position)}
    openings = tx.execute(text(_OPEN), parameters).scalar_one()
    if openings is None:
        raise _not_owned(ownership)
    bounds = {"most": MOST_TROUBLED, "longest_error": LONGEST_ERROR}
    return openings, [MessageDelivery(*row) for row in tx.execute(text(_TROUBLED), parameters | bounds)]


def close_bucket(tx: Connection, ownership: Ownership) -> None:
    """This life's work in the bucket has ended in good order, so its beginning there is no sign of trouble."""
    tx.execute(text(_CLOSE), ownership.parameters)


def note(
    tx: Connection,
    ownership: Ownership,
    position: Sequence[int],
    event: DeliveryEvent,
    deliveries: int,
    error: str | None,
) -> None:
    """What happens to a message in its n-th delivery. Said twice it counts once. Raises LostRace for who does not own the bucket."""
    parameters = {
        **ownership.parameters,
        "position": list(position),
        "event": event.value,
        "deliveries": deliveries,
        "error": error,
    }
    if not tx.execute(text(_NOTE), parameters).scalar_one():
        raise _not_owned(ownership)


def _not_owned(ownership: Ownership) -> LostRace:
    return LostRace(
        f"consumer {ownership.consumer} does not own bucket {ownership.bucket_start} of segment {ownership.segment_id} since "
        f"generation {ownership.generation}; what it owns now is in its assignment",
        0.1,
        what="delivery",
    )
