"""Counts deliveries across crashes: the position at which each bucket was opened, and messages that fail or end their process
(sql/schema/26_deliveries.sql).

Only the present owner of a bucket can change its rows: each call has the incarnation of the consumer and the generation of its
ownership.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, text

from controller.domain.delivery_events import DeliveryEvent
from controller.domain.errors import LostRace
from controller.store.topics.bucket_owners import SubscriptionKey


@dataclass(frozen=True, slots=True)
class Ownership:
    """Ownership of one bucket, as its consumer reports it."""

    key: SubscriptionKey
    consumer: str
    incarnation: str
    segment_id: int
    bucket_start: int
    generation: int
    subject: str | None = None
    """Subject of the token of the report; None without a token."""

    @property
    def parameters(self) -> dict[str, object]:
        """Parameters of the statements of this module: all fields except `subject`."""
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
    """A message that failed, or whose handling began and has not ended. `deaths`: number of processes that ended
    while they handled the message.
    """

    position: Sequence[int]
    deliveries: int
    deaths: int
    error: str | None


MOST_TROUBLED = 1000
"""Maximum number of messages that are kept per bucket, as in `cleave.note_delivery`. A consumer holds this number by default."""
LONGEST_ERROR = 200
"""Maximum number of characters of an error that the next reader of the bucket gets."""
_OPEN = """
    SELECT cleave.open_bucket(:topic_id, :subscription, :segment_id, :bucket_start, :consumer, :incarnation, :generation,
                              CAST(:position AS bigint[]))
"""
_CLOSE = """
    UPDATE cleave.bucket_opening SET openings = 1
     WHERE topic_id = :topic_id AND subscription = :subscription AND segment_id = :segment_id AND bucket_start = :bucket_start
       AND opened_by = :incarnation
"""
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
    """Record that the owner begins to read the bucket at this position, and delete the records of messages before the
    position. Return two values: the number of consecutive openings at this position, including this one, and the
    recorded messages from the position on, in order, at most `MOST_TROUBLED`, with at most `LONGEST_ERROR` characters
    of each error. Openings in succession by one incarnation count once. `close_bucket` resets the number to 1, so the
    next opening there by another incarnation returns 2.

    If another incarnation began to handle a message and recorded neither its end nor a failure, the message's
    `deaths` increases by 1, and its `error` becomes a text that says so. Raises LostRace if the incarnation does not
    own the bucket in `ownership.generation`.
    """
    parameters = {**ownership.parameters, "position": list(position)}
    openings = tx.execute(text(_OPEN), parameters).scalar_one()
    if openings is None:
        raise _not_owned(ownership)
    bounds = {"most": MOST_TROUBLED, "longest_error": LONGEST_ERROR}
    return openings, [MessageDelivery(*row) for row in tx.execute(text(_TROUBLED), parameters | bounds)]


def close_bucket(tx: Connection, ownership: Ownership) -> None:
    """Record that this incarnation has ended its work in the bucket without a crash, which resets the number of openings to 1. Does
    nothing if another incarnation has opened the bucket since.
    """
    tx.execute(text(_CLOSE), ownership.parameters)


def note(
    tx: Connection,
    ownership: Ownership,
    position: Sequence[int],
    event: DeliveryEvent,
    deliveries: int,
    error: str | None,
) -> None:
    """Record an event of the message at `position`: of the n-th delivery of the message, where n is `deliveries`.
    `error` is the text of a failure; None keeps the stored text. The event ENDED deletes the record of the message. A
    repeated call has the same effect as a single call. The stored number of deliveries never decreases.

    A bucket keeps the records of at most `MOST_TROUBLED` messages. Further records are deleted, first those of
    messages whose handling is not in progress and has ended no process, and among these the records that were changed
    longest ago. Raises LostRace if the incarnation does not own the bucket in `ownership.generation`; then nothing is
    written.
    """
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
        f"generation {ownership.generation}; read its present buckets from its assignment",
        0.1,
        what="delivery",
    )
