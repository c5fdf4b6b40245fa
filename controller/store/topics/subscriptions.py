"""Recorded subscriptions, whose cursors every created log must have.

Intents write the rows, and commits delete them. Each change raises the topic's `subscription_version`, which a reshape records and
compares. So a runner that copies subscriptions from log to log reads the version and these rows first, and the logs second.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, Row, text

from controller.domain.errors import SubscriptionNotFound
from controller.domain.subscription_consumers import SubscriptionConsumers
from controller.store.topics import topics


class SubscriptionKind(StrEnum):
    """Kind of a subscription: read in order by assigned consumers, read as a queue, or read from checkpoints of the application."""

    STREAM = "STREAM"
    QUEUE = "QUEUE"
    CHECKPOINT = "CHECKPOINT"


class SubscriptionStart(StrEnum):
    """Start of a subscription: at the first message that still exists, or after all messages published so far."""

    EARLIEST = "earliest"
    LATEST = "latest"


class SubscriptionState(StrEnum):
    """State of a subscription. While DELETING, its cursors are being deleted, and created logs have no cursor of it."""

    LIVE = "live"
    DELETING = "deleting"


@dataclass(frozen=True, slots=True)
class SubscriptionRow:
    """A recorded subscription. It does not read segments that were sealed by `created_epoch`. It begins at the earliest message of all
    other segments, unless it was created at latest: in the segments that were ACTIVE then, after the messages published until then.
    `readable_segments` reads the parameters of its assignment.
    """

    topic_id: int
    name: str
    kind: SubscriptionKind
    state: SubscriptionState
    created_epoch: int
    created_at: datetime
    generation: int
    origin: int
    """Number under which positions stored by applications are valid."""
    consumers: SubscriptionConsumers = SubscriptionConsumers.CLEAVE

    @property
    def is_stock(self) -> bool:
        """True if standard Pulsar consumers read the subscription, which gates keep in order."""
        return self.consumers is SubscriptionConsumers.STOCK

    @property
    def as_of(self) -> str:
        """Version text `generation.origin` under which reports of queue consumers about segments are valid. Each seek changes the text."""
        return as_of(self.generation, self.origin)


def as_of(generation: int, origin: int) -> str:
    """Return the version text `generation.origin`, under which reports of queue consumers about segments are valid."""
    return f"{generation}.{origin}"


_OF_TOPIC = """
    SELECT topic_id, name, kind, state, created_epoch, created_at, generation, origin, consumers
      FROM cleave.subscription WHERE topic_id = :topic_id
"""


_NEW = """
    INSERT INTO cleave.subscription (topic_id, name, kind, created_epoch, consumers)
    VALUES (:topic_id, :name, :kind, :epoch, :consumers)
"""
_FIRST_EPOCH = """
    SELECT coalesce(min(s.sealed_epoch) - 1, t.epoch)
      FROM cleave.topic t
      LEFT JOIN cleave.segment s ON s.topic_id = t.topic_id AND s.state = 'SEALED' AND s.pruned_epoch IS NULL
           AND (CAST(:since AS timestamptz) IS NULL OR s.sealed_at >= CAST(:since AS timestamptz))
     WHERE t.topic_id = :topic_id GROUP BY t.epoch
"""
_REACH_BACK = """
    UPDATE cleave.subscription SET created_epoch = :epoch
     WHERE topic_id = :topic_id AND name = :name AND created_epoch > :epoch
"""


_SET_SHARING = """
    UPDATE cleave.subscription
       SET parents_block = coalesce(:parents_block, parents_block), drain_consumers = coalesce(:drain_consumers, drain_consumers),
           consumers = coalesce(:consumers, consumers)
     WHERE topic_id = :topic_id AND name = :name
"""


def insert_subscription(
    tx: Connection,
    topic_id: int,
    name: str,
    kind: SubscriptionKind,
    created_epoch: int,
    consumers: SubscriptionConsumers = SubscriptionConsumers.CLEAVE,
) -> None:
    """Insert a live subscription, which does not read segments that were sealed by `created_epoch`. The caller has checked the
    name. A name that the topic has already breaks a constraint (Conflict).
    """
    parameters = {"topic_id": topic_id, "name": name, "kind": kind.value, "epoch": created_epoch}
    tx.execute(text(_NEW), {**parameters, "consumers": consumers.value})


def first_epoch(tx: Connection, topic_id: int, since: datetime | None = None) -> int:
    """Return the creation epoch of a subscription that is to read all segments sealed at or after `since` (aware; None: all sealed segments
    that are not pruned): 1 less than the lowest epoch in which one of them was sealed, or the topic's epoch if there is none. The topic
    must exist.
    """
    parameters = {"topic_id": topic_id, "since": since}
    return int(tx.execute(text(_FIRST_EPOCH), parameters).scalar_one())


def reach_back(tx: Connection, topic_id: int, name: str, epoch: int) -> None:
    """Make the subscription read segments that were sealed after the epoch, too, by lowering its creation epoch. Does nothing if it reads
    them already or does not exist.
    """
    tx.execute(text(_REACH_BACK), {"topic_id": topic_id, "name": name, "epoch": epoch})


def set_sharing(
    tx: Connection,
    topic_id: int,
    name: str,
    *,
    parents_block: bool | None,
    drain_consumers: int | None,
    consumers: SubscriptionConsumers | None = None,
) -> None:
    """Set parameters of the subscription's assignment; None keeps a parameter. `parents_block`: False if a segment need not wait until its
    ancestors are drained. `drain_consumers` (1 to 65536): maximum number of consumers that share a sealed segment until it is drained.
    `consumers`: the kind of consumers that read the subscription; the caller has refused a change that would break the order.

    Raises SubscriptionNotFound, and through constraints InvalidInput for another number of consumers, and Conflict if standard consumers
    would read a subscription that is not a stream, or whose `parents_block` is False.
    """
    get_subscription(tx, topic_id, name)
    tx.execute(
        text(_SET_SHARING),
        {
            "topic_id": topic_id,
            "name": name,
            "parents_block": parents_block,
            "drain_consumers": drain_consumers,
            "consumers": None if consumers is None else consumers.value,
        },
    )


def list_subscriptions(tx: Connection, topic_id: int) -> list[SubscriptionRow]:
    """Return the subscriptions of a topic by name, including those being deleted."""
    return [
        _subscription(row) for row in tx.execute(text(_OF_TOPIC + " ORDER BY name"), {"topic_id": topic_id})
    ]


def get_subscription(tx: Connection, topic_id: int, name: str, *, lock: bool = False) -> SubscriptionRow:
    """Return a subscription of a topic, live or being deleted. With `lock`, no consumer can register with the subscription until the
    transaction ends. Raises SubscriptionNotFound, also for an unknown topic.
    """
    statement = text(_OF_TOPIC + " AND name = :name" + (" FOR UPDATE" if lock else ""))
    row = tx.execute(statement, {"topic_id": topic_id, "name": name}).one_or_none()
    if row is None:
        raise missing(tx, topic_id, name)
    return _subscription(row)


def missing(tx: Connection, topic_id: int, name: str, *, kind: str = "subscription") -> SubscriptionNotFound:
    """Return the error for a subscription that the topic does not have. `kind` is the noun of the message."""
    return SubscriptionNotFound(
        f"topic {topics.name_of(tx, topic_id)} has no {kind} {name}; create it, or check the name"
    )


def _subscription(row: Row[Any]) -> SubscriptionRow:
    typed = {
        "kind": SubscriptionKind(row.kind),
        "state": SubscriptionState(row.state),
        "consumers": SubscriptionConsumers(row.consumers),
    }
    return SubscriptionRow(**{**row._mapping, **typed})
