"""Consumers: durable session rows. Whether one is alive is its coordinator's to know, in memory.

Registering and leaving raise the topic's input version and notify, by trigger. What each consumer reads is
computed (``domain/assignment``), not stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, text

from controller.domain.errors import Conflict, TopicNotLive
from controller.store.topics import subscriptions, topics
from controller.store.topics.subscriptions import SubscriptionState
from controller.store.topics.topics import TopicState


@dataclass(frozen=True, slots=True)
class ConsumerRow:
    """One session; ``connected`` is what its coordinator last wrote, for people to read."""

    topic_id: int
    subscription: str
    name: str
    connected: bool
    registered_at: datetime


_REGISTER = """
    INSERT INTO cleave.consumer (topic_id, subscription, name) VALUES (:topic_id, :subscription, :name)
    ON CONFLICT (topic_id, subscription, name) DO UPDATE SET connected = true
 RETURNING xmax = 0
"""
_UNREGISTER = """
    DELETE FROM cleave.consumer WHERE topic_id = :topic_id AND subscription = :subscription AND name = :name
"""
_CONNECTED = """
    UPDATE cleave.consumer SET connected = :connected
     WHERE topic_id = :topic_id AND subscription = :subscription AND name = :name AND connected <> :connected
"""
_LIST = """
    SELECT topic_id, subscription, name, connected, registered_at FROM cleave.consumer
     WHERE topic_id = :topic_id AND (CAST(:subscription AS text) IS NULL OR subscription = :subscription)
     ORDER BY subscription, name
"""


def register(tx: Connection, topic_id: int, subscription: str, name: str) -> bool:
    """Adds the consumer, or takes its session up again; True when it is new.

    Raises TopicNotFound, TopicNotLive, SubscriptionNotFound, or Conflict while the subscription is deleted.
    """
    topic = topics.get_topic(tx, topic_id)
    if topic.state is not TopicState.LIVE:
        raise TopicNotLive(f"topic {topic.name} is {topic.state}; consumers join a live topic only")
    if subscriptions.get_subscription(tx, topic_id, subscription).state is SubscriptionState.DELETING:
        raise Conflict(
            f"subscription {subscription} of topic {topic.name} is being deleted; create it anew afterwards"
        )
    return bool(tx.execute(text(_REGISTER), _key(topic_id, subscription, name)).scalar_one())


def unregister(tx: Connection, topic_id: int, subscription: str, name: str) -> bool:
    """Removes the consumer; False when there was none."""
    return tx.execute(text(_UNREGISTER), _key(topic_id, subscription, name)).rowcount == 1


def set_connected(tx: Connection, topic_id: int, subscription: str, name: str, *, connected: bool) -> None:
    """Notes whether the session has a connection now; changes no input of a decision."""
    tx.execute(text(_CONNECTED), _key(topic_id, subscription, name) | {"connected": connected})


def list_consumers(tx: Connection, topic_id: int, subscription: str | None = None) -> list[ConsumerRow]:
    """Registered consumers, connected or not, by subscription and name."""
    rows = tx.execute(text(_LIST), {"topic_id": topic_id, "subscription": subscription})
    return [ConsumerRow(**row._mapping) for row in rows]


def _key(topic_id: int, subscription: str, name: str) -> dict[str, object]:
    return {"topic_id": topic_id, "subscription": subscription, "name": name}
