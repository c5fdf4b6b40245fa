"""Topics: reading rows, locking them, and the one way a row changes.

The topic row is the lock of everything below it: layouts, intents, commits, subscriptions. It is locked FOR NO
KEY UPDATE, so that rows which merely refer to the topic can still be written meanwhile. Which changes are
allowed is for intents, commits and policies; each goes through `update_topic`, by row version.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, insert, select, text, update

from controller.domain.errors import LostRace, TopicExists, TopicNotFound, TopicNotLive
from controller.domain.names import demand_topic
from controller.domain.policy import PolicyOverride
from controller.store.postgres.tables import TOPIC


class TopicState(StrEnum):
    """A topic is live between the commits of its creation and of its deletion."""

    CREATING = "creating"
    LIVE = "live"
    DELETING = "deleting"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class TopicRow:
    """One row of `cleave.topic` as it was read; `row_version` is what a change compares."""

    topic_id: int
    name: str
    namespace: str
    state: TopicState
    data_plane: str
    epoch: int
    next_segment_id: int
    subscription_version: int
    row_version: int
    properties: Mapping[str, Any]
    policy: Mapping[str, Any] | None
    last_split_at: datetime | None
    last_merge_at: datetime | None
    last_rebucket_at: datetime | None
    last_consumer_act_at: datetime | None
    created_at: datetime
    deleted_at: datetime | None


_LAST_OF_NAME = """
    SELECT state, next_segment_id FROM cleave.topic WHERE name = :name ORDER BY topic_id DESC LIMIT 1
"""
_SAY_WHO = text("SELECT set_config('cleave.actor', :actor, true)")


def find_topic(tx: Connection, name: str, *, lock: bool = False) -> TopicRow:
    """The topic that has the name now, in whatever state but deleted. Raises TopicNotFound."""
    row = _one(tx, TOPIC.c.name == name, TOPIC.c.state != TopicState.DELETED.value, lock=lock)
    if row is None:
        raise TopicNotFound(f"topic {name} does not exist; create it or check the name")
    return _topic(row)


def get_topic(tx: Connection, topic_id: int, *, lock: bool = False) -> TopicRow:
    """The topic of that id, deleted ones included. Raises TopicNotFound."""
    row = _one(tx, TOPIC.c.topic_id == topic_id, lock=lock)
    if row is None:
        raise TopicNotFound(f"topic {topic_id} does not exist; look its id up by name")
    return _topic(row)


def name_of(tx: Connection, topic_id: int) -> str:
    """The name of a topic for a message, deleted topics included."""
    name = tx.execute(select(TOPIC.c.name).where(TOPIC.c.topic_id == topic_id)).scalar_one_or_none()
    return f"with id {topic_id}" if name is None else str(name)


def get_topics(tx: Connection, topic_ids: Collection[int]) -> list[TopicRow]:
    """Those of the topics that there are, deleted ones included."""
    return [_topic(row) for row in tx.execute(select(TOPIC).where(TOPIC.c.topic_id.in_(topic_ids)))]


def lock_live_topic(tx: Connection, topic_id: int) -> TopicRow:
    """The topic, locked until the transaction ends. Raises TopicNotFound, or TopicNotLive naming the state."""
    topic = get_topic(tx, topic_id, lock=True)
    demand_live(topic.name, topic.state)
    return topic


def demand_live(topic: str, state: TopicState) -> None:
    """Raises TopicNotLive naming the state."""
    if state is not TopicState.LIVE:
        raise TopicNotLive(f"topic {topic} is {state}; only a live topic takes requests")


def namespace_of(name: str) -> str:
    """`tenant/namespace` of `topic://tenant/namespace/name`."""
    return "/".join(name.removeprefix("topic://").split("/")[:2])


def first_free_segment_id(tx: Connection, name: str) -> int:
    """One above every id that a topic of this name has reserved; a deleted topic reserves no more. Raises TopicExists.

    If the name is used and freed before the caller's row is written, the database refuses that row.
    """
    last = tx.execute(text(_LAST_OF_NAME), {"name": name}).one_or_none()
    if last is None:
        return 0
    if last.state != TopicState.DELETED:
        raise TopicExists(
            f"topic {name} exists already ({last.state}); delete it first or choose another name"
        )
    return int(last.next_segment_id)


def insert_topic(
    tx: Connection,
    name: str,
    *,
    data_plane: str,
    next_segment_id: int,
    actor: str,
    policy: PolicyOverride | None = None,
    properties: Mapping[str, str] | None = None,
) -> TopicRow:
    """A topic in state creating; its name is checked. `policy` is stored as given: the caller checks that it fits the levels above.

    The history of policies names `actor` for it.
    """
    columns = {
        "name": demand_topic(name),
        "namespace": namespace_of(name),
        "data_plane": data_plane,
        "properties": dict(properties or {}),
        "policy": None if policy is None else policy.to_document(),
        "next_segment_id": next_segment_id,
    }
    if policy is not None:
        say_who(tx, actor)
    topic_id = tx.execute(insert(TOPIC).values(columns).returning(TOPIC.c.topic_id)).scalar_one()
    return get_topic(tx, topic_id)


def say_who(tx: Connection, actor: str | None) -> None:
    """Whom the history of policies names from here to the end of the transaction; None: the login."""
    tx.execute(_SAY_WHO, {"actor": actor or ""})


def update_topic(tx: Connection, topic: TopicRow, /, **changes: object) -> int:
    """Changes columns of the row as it was read; returns the new row version.

    Raises LostRace when the row has changed since. `changes` are column names of the program's, never input.
    """
    statement = (
        update(TOPIC)
        .where(TOPIC.c.topic_id == topic.topic_id, TOPIC.c.row_version == topic.row_version)
        .values(**changes, row_version=topic.row_version + 1)
    )
    if tx.execute(statement).rowcount != 1:
        raise LostRace(
            f"topic {topic.name} changed after row version {topic.row_version} was read; read it again and repeat",
            what="topic",
        )
    return topic.row_version + 1


def _one(tx: Connection, *conditions: ColumnElement[bool], lock: bool) -> Row[Any] | None:
    found = select(*TOPIC.c).where(*conditions)
    return tx.execute(found.with_for_update(key_share=True) if lock else found).one_or_none()


def _topic(row: Row[Any]) -> TopicRow:
    return TopicRow(**{**row._mapping, "state": TopicState(row.state)})
