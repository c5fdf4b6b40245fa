"""Registered consumers: durable rows. Whether one is alive is known to the leader of its topic alone.

Registering and leaving raise the topic's input version and notify, by trigger. What each consumer reads is in
`bucket_owners`. An incarnation is one life of a consumer; one that has departed is remembered for a while, since what it sent
may arrive late.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, text

from controller.domain.consumer_registration import ConsumerRegistration
from controller.domain.errors import AccessForbidden, FencedOut, SessionExpired
from controller.domain.names import demand_name
from controller.store.shards import Shards


@dataclass(frozen=True, slots=True)
class ConsumerRow:
    """One registered consumer."""

    topic_id: int
    subscription: str
    name: str
    registered_at: datetime
    incarnation: str = ""
    away_seconds: float | None = None
    """For how long it has not been connected, where that was noted."""
    subject: str | None = None
    """Subject of the token that began the session; None where no token did."""


_REGISTER = """
    SELECT topic_name, topic_state, subscription_state, is_new
      FROM cleave.register_consumer(:topic_id, :subscription, :name)
"""
_UNREGISTER = """
    DELETE FROM cleave.consumer WHERE topic_id = :topic_id AND subscription = :subscription AND name = :name
"""
_LIST = """
    SELECT topic_id, subscription, name, registered_at, incarnation, subject,
           CAST(extract(epoch FROM clock_timestamp() - disconnected_at) AS float8) AS away_seconds
      FROM cleave.consumer
     WHERE topic_id = :topic_id AND (CAST(:subscription AS text) IS NULL OR subscription = :subscription)
     ORDER BY subscription, name
"""


def register(tx: Connection, topic_id: int, subscription: str, name: str) -> bool:
    """Adds the consumer; True when it is new. Raises InvalidInput for its name, else as `ConsumerRegistration.demand`."""
    demand_name("consumer", name)
    answer = tx.execute(text(_REGISTER), _key(topic_id, subscription, name)).one()
    return ConsumerRegistration(*answer).demand(topic_id, subscription)


def unregister(tx: Connection, topic_id: int, subscription: str, name: str) -> bool:
    """Removes the consumer; False when there was none."""
    return tx.execute(text(_UNREGISTER), _key(topic_id, subscription, name)).rowcount == 1


def list_consumers(tx: Connection, topic_id: int, subscription: str | None = None) -> list[ConsumerRow]:
    """Registered consumers, by subscription and name."""
    rows = tx.execute(text(_LIST), {"topic_id": topic_id, "subscription": subscription})
    return [ConsumerRow(**row._mapping) for row in rows]


MOST_DEPARTED = 1000
"""Lives of one subscription's consumers that are remembered. Whoever has a token can say goodbye for lives that never were; the
register of a life that is forgotten leaves a session that ends with its grace period.
"""
LEFT, EXPIRED = "left", "expired"
"""Why a life of a consumer is over; the third reason is that another one of its name has begun."""
FOREIGN = "foreign"
"""Instead of a reason: the session belongs to another subject."""
_DEPARTED = {LEFT: "has left", "replaced": "was replaced by a newer one"}
_HAS_SESSION = """
    SELECT EXISTS (SELECT FROM cleave.consumer WHERE topic_id = :topic_id AND subscription = :subscription
                      AND name = :name AND incarnation = :incarnation)
"""
_REGISTER_SESSION = """
    SELECT topic_name, topic_state, subscription_state, is_new, departed
      FROM cleave.register_session(:topic_id, :subscription, :name, :incarnation, :subject)
"""
_DEPART = """
    WITH gone AS (
        DELETE FROM cleave.consumer
         WHERE topic_id = :topic_id AND subscription = :subscription AND name = :name AND incarnation = :incarnation)
    INSERT INTO cleave.departed_consumer (topic_id, subscription, name, incarnation, reason)
    SELECT topic_id, name, :name, :incarnation, :reason FROM cleave.subscription
     WHERE topic_id = :topic_id AND name = :subscription
    ON CONFLICT DO NOTHING
"""
_FORGET_OLDEST = """
    DELETE FROM cleave.departed_consumer
     WHERE topic_id = :topic_id AND subscription = :subscription AND departed_at < (
           SELECT departed_at FROM cleave.departed_consumer
            WHERE topic_id = :topic_id AND subscription = :subscription
            ORDER BY departed_at DESC OFFSET :most - 1 LIMIT 1)
"""
_IS_FOREIGN = """
    SELECT EXISTS (SELECT FROM cleave.consumer WHERE topic_id = :topic_id AND subscription = :subscription
                      AND name = :name AND subject <> CAST(:subject AS text))
"""
_NOTE_AWAY = """
    UPDATE cleave.consumer c SET disconnected_at = clock_timestamp() - make_interval(secs => n.seconds)
      FROM unnest(CAST(:names AS text[]), CAST(:seconds AS float8[])) AS n (name, seconds)
     WHERE c.topic_id = :topic_id AND c.subscription = :subscription AND c.name = n.name
"""
_OF_SHARDS = """
    SELECT topic_id, subscription, name, registered_at, incarnation, subject FROM cleave.consumer
     WHERE topic_id % :shard_count = ANY (:shards) ORDER BY topic_id, subscription, name
"""
_FORGET = """
    DELETE FROM cleave.departed_consumer WHERE departed_at < clock_timestamp() - make_interval(secs => :age_seconds)
"""


def has_session(tx: Connection, topic_id: int, subscription: str, name: str, incarnation: str) -> bool:
    """Return True if this incarnation of the consumer is registered."""
    row = {**_key(topic_id, subscription, name), "incarnation": incarnation}
    return bool(tx.execute(text(_HAS_SESSION), row).scalar_one())


def register_session(
    tx: Connection, topic_id: int, subscription: str, name: str, incarnation: str, subject: str | None = None
) -> bool:
    """The consumer's life `incarnation` begins, or goes on; True when no consumer of that name was there.

    Another life of that name departs. Raises AccessForbidden where a session of that name belongs to another subject,
    SessionExpired for one that was away for too long, FencedOut for one that has left or was replaced, InvalidInput for
    its name, else as `ConsumerRegistration.demand`.
    """
    demand_name("consumer", name)
    row = {**_key(topic_id, subscription, name), "incarnation": incarnation, "subject": subject}
    *answer, departed = tx.execute(text(_REGISTER_SESSION), row).one()
    if departed == FOREIGN:
        raise not_yours(name, subscription)
    if departed == EXPIRED:
        raise SessionExpired(
            f"consumer {name} of {subscription} was away for too long; begin a new session", 0.0
        )
    if departed is not None:
        raise FencedOut(
            f"consumer {name} of {subscription}: this incarnation {_DEPARTED[departed]}; open a new consumer"
        )
    return ConsumerRegistration(*answer).demand(topic_id, subscription)


def not_yours(name: str, subscription: str) -> AccessForbidden:
    """The error for a token of another subject than the session's."""
    return AccessForbidden(
        f"consumer {name} of {subscription} has a session that a token of another subject began; give this consumer another name, "
        "or ask with a token of that subject"
    )


def demand_owner(tx: Connection, topic_id: int, subscription: str, name: str, subject: str | None) -> None:
    """Raises AccessForbidden where the consumer's session belongs to another subject."""
    row = {**_key(topic_id, subscription, name), "subject": subject}
    if tx.execute(text(_IS_FOREIGN), row).scalar_one():
        raise not_yours(name, subscription)


def depart(
    tx: Connection, topic_id: int, subscription: str, name: str, incarnation: str, reason: str = LEFT
) -> None:
    """The life `incarnation` is over, registered or not: its row goes, and what it still sends is refused. The row of another
    life stays.
    """
    row = {**_key(topic_id, subscription, name), "incarnation": incarnation, "reason": reason}
    tx.execute(text(_DEPART), row)
    tx.execute(text(_FORGET_OLDEST), {**row, "most": MOST_DEPARTED})


def note_away(tx: Connection, topic_id: int, subscription: str, seconds: Mapping[str, float | None]) -> None:
    """Keep for how long each of these has not been connected; None: it is."""
    if seconds:
        row = {"topic_id": topic_id, "subscription": subscription}
        tx.execute(text(_NOTE_AWAY), {**row, "names": list(seconds), "seconds": list(seconds.values())})


def of_shards(tx: Connection, shards: Shards) -> list[ConsumerRow]:
    """Every registered consumer of the shards' topics, by topic, subscription and name."""
    return [ConsumerRow(**row._mapping) for row in tx.execute(text(_OF_SHARDS), shards.parameters)]


def forget_departed(tx: Connection, age_seconds: float) -> int:
    """Forget those that departed so long ago that nothing of them can arrive any more; how many."""
    return tx.execute(text(_FORGET), {"age_seconds": age_seconds}).rowcount


def _key(topic_id: int, subscription: str, name: str) -> dict[str, object]:
    return {"topic_id": topic_id, "subscription": subscription, "name": name}
