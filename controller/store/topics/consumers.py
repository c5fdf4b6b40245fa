"""Registered consumers, as durable rows. Only the leader of the topic knows whether a consumer is alive.

Triggers raise the topic's input version and notify when a consumer registers or departs. `bucket_owners` stores the buckets of each
consumer. An incarnation is one process of a consumer. Departed incarnations are kept for some time, because their messages may
arrive late.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, text

from controller.domain.errors import (
    AccessForbidden,
    Conflict,
    FencedOut,
    SessionExpired,
    SubscriptionNotFound,
    TopicNotFound,
    TopicNotLive,
)
from controller.domain.names import demand_name
from controller.store.shards import Shards


@dataclass(frozen=True, slots=True)
class ConsumerRow:
    """A registered consumer."""

    topic_id: int
    subscription: str
    name: str
    registered_at: datetime
    incarnation: str = ""
    """Process of that name that has the session; empty if `register` registered the consumer, without a session."""
    away_seconds: float | None = None
    """Seconds since the consumer lost its connection; None if the consumer is connected, or if the read does not include the time."""
    subject: str | None = None
    """Subject of the token that began the session; None if the session began without a token."""


_REGISTER = """
    WITH found AS (
        SELECT t.name AS topic_name, t.state AS topic_state, u.state AS subscription_state
          FROM cleave.topic t LEFT JOIN cleave.subscription u ON u.topic_id = t.topic_id AND u.name = :subscription
         WHERE t.topic_id = :topic_id),
    added AS (
        INSERT INTO cleave.consumer (topic_id, subscription, name)
        SELECT :topic_id, :subscription, :name FROM found WHERE topic_state = 'live' AND subscription_state = 'live'
        ON CONFLICT (topic_id, subscription, name) DO NOTHING RETURNING name)
    SELECT topic_name, topic_state, subscription_state, EXISTS (SELECT FROM added) AS is_new
      FROM (VALUES (true)) AS always LEFT JOIN found ON true
"""
"""The topic and the subscription are NULL if they do not exist. The consumer is inserted only if both are live."""
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
    """Register a consumer without a session. Return True if the consumer was registered by this call. Return False,
    without a change, if a consumer of that name was registered already.

    Raises InvalidInput for an invalid name; TopicNotFound; TopicNotLive; SubscriptionNotFound; and Conflict while the
    subscription is being deleted, or (through a constraint) if standard consumers read the subscription.
    """
    demand_name("consumer", name)
    answer = tx.execute(text(_REGISTER), _key(topic_id, subscription, name)).one()
    return _demand_registered(topic_id, subscription, *answer)


def unregister(tx: Connection, topic_id: int, subscription: str, name: str) -> bool:
    """Remove the consumer. Return False if the consumer was not registered."""
    return tx.execute(text(_UNREGISTER), _key(topic_id, subscription, name)).rowcount == 1


def list_consumers(tx: Connection, topic_id: int, subscription: str | None = None) -> list[ConsumerRow]:
    """Return the registered consumers of the topic, or of one subscription, by subscription and name. Empty for a topic or subscription
    that does not exist.
    """
    rows = tx.execute(text(_LIST), {"topic_id": topic_id, "subscription": subscription})
    return [ConsumerRow(**row._mapping) for row in rows]


MOST_DEPARTED = 1000
"""Maximum number of departed incarnations that are kept per subscription. The bound is needed because a token holder can deregister
incarnations that never existed. If a deleted incarnation registers again, its session ends after the grace period.
"""
LEFT, EXPIRED = "left", "expired"
"""Reasons for which an incarnation has departed. The third reason is `replaced`, by another incarnation of the same name."""
FOREIGN = "foreign"
"""Value instead of a reason if the session belongs to another subject."""
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
_SUBJECT = """
    SELECT subject FROM cleave.consumer WHERE topic_id = :topic_id AND subscription = :subscription AND name = :name
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
    """Begin or continue the session of `incarnation` for the consumer `name`. Return True if no consumer of that name
    was registered before.

    Another incarnation of the name is replaced, and recorded as departed. `subject` is the subject of the caller's
    token; None without a token. A session that has no subject, and a session that replaces another incarnation, get
    `subject`.

    Raises AccessForbidden if the registered session has a subject and `subject` is a different one; SessionExpired if
    the incarnation was disconnected for longer than the grace period; FencedOut if the incarnation has left or was
    replaced; InvalidInput for an invalid name; TopicNotFound; TopicNotLive; SubscriptionNotFound; and Conflict while
    the subscription is being deleted, or (through a constraint) if standard consumers read the subscription.
    """
    demand_name("consumer", name)
    row = {**_key(topic_id, subscription, name), "incarnation": incarnation, "subject": subject}
    *answer, departed = tx.execute(text(_REGISTER_SESSION), row).one()
    if departed == FOREIGN:
        raise _not_yours(name, subscription)
    if departed == EXPIRED:
        raise SessionExpired(
            f"consumer {name} of {subscription} was disconnected for too long; begin a new session", 0.0
        )
    if departed is not None:
        raise FencedOut(
            f"consumer {name} of {subscription}: this incarnation {_DEPARTED[departed]}; open a new consumer"
        )
    return _demand_registered(topic_id, subscription, *answer)


def demand_subject(owner: str | None, subject: str | None, name: str, subscription: str) -> None:
    """Raise AccessForbidden if `subject`, of the token of a request for the consumer `name`, differs from `owner`, the
    subject of the token that began its session. Does nothing if either is None, because there was no token.
    """
    if subject is not None and owner not in (None, subject):
        raise _not_yours(name, subscription)


def _not_yours(name: str, subscription: str) -> AccessForbidden:
    return AccessForbidden(
        f"consumer {name} of {subscription} has a session that a token of another subject began; give this consumer another name, "
        "or use a token of that subject"
    )


def demand_owner(tx: Connection, topic_id: int, subscription: str, name: str, subject: str | None) -> None:
    """Raise AccessForbidden if the session of the consumer belongs to another subject. Does nothing if the consumer is
    not registered, if its session began without a token, or if `subject` is None.
    """
    owner = tx.execute(text(_SUBJECT), _key(topic_id, subscription, name)).scalar()
    demand_subject(owner, subject, name, subscription)


def depart(
    tx: Connection, topic_id: int, subscription: str, name: str, incarnation: str, reason: str = LEFT
) -> None:
    """Record that the incarnation of the consumer has departed for `reason` (LEFT or EXPIRED), so that late messages
    of the incarnation are refused, and unregister the consumer. The incarnation need not be registered. If another
    incarnation of the name is registered, that incarnation stays registered. If the departure is recorded already,
    its reason and time are kept.

    Keeps the records of the newest `MOST_DEPARTED` departed incarnations of the subscription, and deletes older
    records. Does nothing if the subscription does not exist.
    """
    row = {**_key(topic_id, subscription, name), "incarnation": incarnation, "reason": reason}
    tx.execute(text(_DEPART), row)
    tx.execute(text(_FORGET_OLDEST), {**row, "most": MOST_DEPARTED})


def note_disconnected(
    tx: Connection, topic_id: int, subscription: str, seconds: Mapping[str, float | None]
) -> None:
    """Store, for each consumer name in `seconds`, the number of seconds for which the consumer has been disconnected;
    None for a connected consumer. Names that are not registered are ignored. Consumers that `seconds` does not
    contain are not changed.
    """
    if seconds:
        row = {"topic_id": topic_id, "subscription": subscription}
        tx.execute(text(_NOTE_AWAY), {**row, "names": list(seconds), "seconds": list(seconds.values())})


def of_shards(tx: Connection, shards: Shards) -> list[ConsumerRow]:
    """Return the registered consumers of all topics of the shards, by topic, subscription and name. `away_seconds` is
    not read and None for all.
    """
    return [ConsumerRow(**row._mapping) for row in tx.execute(text(_OF_SHARDS), shards.parameters)]


def forget_departed(tx: Connection, age_seconds: float) -> int:
    """Delete the records of incarnations, of all topics, that departed more than `age_seconds` ago. Return their number."""
    return tx.execute(text(_FORGET), {"age_seconds": age_seconds}).rowcount


def _key(topic_id: int, subscription: str, name: str) -> dict[str, object]:
    return {"topic_id": topic_id, "subscription": subscription, "name": name}


def _demand_registered(
    topic_id: int,
    subscription: str,
    topic_name: str | None,
    topic_state: str | None,
    subscription_state: str | None,
    is_new: bool | None,
) -> bool:
    """Return True if `_REGISTER` or `cleave.register_session` registered the consumer, False if a consumer of that name was registered
    already. The arguments after the subscription are the columns of the result, None where the row does not exist.

    Raises TopicNotFound, TopicNotLive, SubscriptionNotFound, or Conflict while the subscription is being deleted.
    """
    if topic_state is None:
        raise TopicNotFound(f"topic {topic_id} does not exist; look its id up by name")
    if topic_state != "live":
        raise TopicNotLive(f"topic {topic_name} is {topic_state}; consumers join a live topic only")
    if subscription_state is None:
        raise SubscriptionNotFound(
            f"topic {topic_name} has no subscription {subscription}; create it first, or check the name"
        )
    if subscription_state != "live":
        raise Conflict(
            f"subscription {subscription} of topic {topic_name} is being deleted; wait for the deletion, then create it again"
        )
    return bool(is_new)
