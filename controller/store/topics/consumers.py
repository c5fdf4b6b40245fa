"""Registered consumers: durable rows. Whether one is alive is known to its client alone.

Registering and leaving raise the topic's input version and notify, by trigger. What each consumer reads is
computed (`domain/assignment`), not stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, text

from controller.domain.consumer_registration import ConsumerRegistration


@dataclass(frozen=True, slots=True)
class ConsumerRow:
    """One registered consumer."""

    topic_id: int
    subscription: str
    name: str
    registered_at: datetime


_REGISTER = """
    SELECT topic_name, topic_state, subscription_state, is_new
      FROM cleave.register_consumer(:topic_id, :subscription, :name)
"""
_UNREGISTER = """
    DELETE FROM cleave.consumer WHERE topic_id = :topic_id AND subscription = :subscription AND name = :name
"""
_LIST = """
    SELECT topic_id, subscription, name, registered_at FROM cleave.consumer
     WHERE topic_id = :topic_id AND (CAST(:subscription AS text) IS NULL OR subscription = :subscription)
     ORDER BY subscription, name
"""


def register(tx: Connection, topic_id: int, subscription: str, name: str) -> bool:
    """Adds the consumer; True when it is new. Raises as `ConsumerRegistration.demand`."""
    answer = tx.execute(text(_REGISTER), _key(topic_id, subscription, name)).one()
    return ConsumerRegistration(*answer).demand(topic_id, subscription)


def unregister(tx: Connection, topic_id: int, subscription: str, name: str) -> bool:
    """Removes the consumer; False when there was none."""
    return tx.execute(text(_UNREGISTER), _key(topic_id, subscription, name)).rowcount == 1


def list_consumers(tx: Connection, topic_id: int, subscription: str | None = None) -> list[ConsumerRow]:
    """Registered consumers, by subscription and name."""
    rows = tx.execute(text(_LIST), {"topic_id": topic_id, "subscription": subscription})
    return [ConsumerRow(**row._mapping) for row in rows]


def _key(topic_id: int, subscription: str, name: str) -> dict[str, object]:
    return {"topic_id": topic_id, "subscription": subscription, "name": name}
