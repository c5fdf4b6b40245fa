"""Reads, locks and changes the rows of topics.

The lock of the topic row protects everything that belongs to the topic: layout, intents, commits, subscriptions. The lock is FOR NO
KEY UPDATE, so that rows that only refer to the topic can be written concurrently. Intents, commits and policies decide which
changes are allowed; all changes go through `update_topic`, which compares the row version.
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
    """State of a topic. A topic is live from the commit of its creation until its deletion is requested, and again if the deletion is
    aborted.
    """

    CREATING = "creating"
    LIVE = "live"
    DELETING = "deleting"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class TopicRow:
    """A row of `cleave.topic` as it was read. A change compares `row_version`."""

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
    """Time of the intent of the last committed split (or recut), from which its cooldown counts; None before the first. The next three
    times are alike.
    """
    last_merge_at: datetime | None
    last_rebucket_at: datetime | None
    last_consumer_act_at: datetime | None
    """Time of the intent of the last rebucket, or reshape that was made for the number of consumers."""
    created_at: datetime
    deleted_at: datetime | None


_LAST_OF_NAME = text(
    "SELECT state, next_segment_id FROM cleave.topic WHERE name = :name ORDER BY topic_id DESC LIMIT 1"
)
_SET_ACTOR = text("SELECT set_config('cleave.actor', :actor, true)")


def find_topic(tx: Connection, name: str, *, lock: bool = False) -> TopicRow:
    """Return the topic of that name, in any state except deleted. With `lock`, the row is locked against other writers until the
    transaction ends. Raises TopicNotFound.
    """
    row = _row(tx, TOPIC.c.name == name, TOPIC.c.state != TopicState.DELETED.value, lock=lock)
    if row is None:
        raise TopicNotFound(f"topic {name} does not exist; create it or check the name")
    return _topic(row)


def get_topic(tx: Connection, topic_id: int, *, lock: bool = False) -> TopicRow:
    """Return the topic of that id, which may be deleted. With `lock`, the row is locked against other writers until the transaction
    ends. Raises TopicNotFound.
    """
    row = _row(tx, TOPIC.c.topic_id == topic_id, lock=lock)
    if row is None:
        raise TopicNotFound(f"topic {topic_id} does not exist; look up its id by name")
    return _topic(row)


def name_of(tx: Connection, topic_id: int) -> str:
    """Return the name of a topic, which may be deleted, for a message; `with id 7` if the topic does not exist."""
    name = tx.execute(select(TOPIC.c.name).where(TOPIC.c.topic_id == topic_id)).scalar_one_or_none()
    return f"with id {topic_id}" if name is None else str(name)


def get_topics(tx: Connection, topic_ids: Collection[int]) -> list[TopicRow]:
    """Return the existing topics of these ids, including deleted topics, in no order."""
    return [_topic(row) for row in tx.execute(select(TOPIC).where(TOPIC.c.topic_id.in_(topic_ids)))]


def lock_live_topic(tx: Connection, topic_id: int) -> TopicRow:
    """Lock the row of the topic until the end of the transaction and return it. Raises TopicNotFound, or TopicNotLive, with the state in
    its message, if the topic is being created or deleted or is deleted.
    """
    topic = get_topic(tx, topic_id, lock=True)
    demand_live(topic.name, topic.state)
    return topic


def demand_live(topic: str, state: TopicState) -> None:
    """Raise TopicNotLive, with the name `topic` and the state, unless the state is live."""
    if state is not TopicState.LIVE:
        raise TopicNotLive(f"topic {topic} is {state}; only a live topic takes requests")


def namespace_of(name: str) -> str:
    """Return `tenant/namespace` of the topic name `topic://tenant/namespace/name`."""
    return "/".join(name.removeprefix("topic://").split("/")[:2])


def demand_free_name(tx: Connection, name: str) -> int:
    """Return the first segment id that no deleted topic of this name has reserved, from which the ids of a topic that
    uses the name again continue; 0 if no topic ever had the name.
    Raises TopicExists if a topic that is not deleted has the name.

    The name is not locked. If another transaction uses the name before the caller inserts its topic row, the database
    refuses the row, for which `Store.transaction` raises TopicExists or LostRace.
    """
    last = tx.execute(_LAST_OF_NAME, {"name": name}).one_or_none()
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
    """Insert a topic in state creating and return its row. `policy` is the override of the topic, which the caller
    has validated together with the levels above. The policy history records `actor` for the policy; without a policy,
    `actor` is not used.

    `next_segment_id` is the first segment id that the creation does not reserve: the result of
    `demand_free_name` plus the number of segments that the creation reserves. Raises InvalidInput
    for an invalid name. If another topic has used the name since `demand_free_name`, a constraint is broken, for
    which `Store.transaction` raises TopicExists or LostRace.
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
        set_actor(tx, actor)
    topic_id = tx.execute(insert(TOPIC).values(columns).returning(TOPIC.c.topic_id)).scalar_one()
    return get_topic(tx, topic_id)


def set_actor(tx: Connection, actor: str | None) -> None:
    """Set the actor recorded in the policy history for the rest of the transaction; None records the login."""
    tx.execute(_SET_ACTOR, {"actor": actor or ""})


def update_topic(tx: Connection, topic: TopicRow, /, **changes: object) -> int:
    """Set the columns in `changes` (column name and value) in the row of the topic, raise the row version by 1, and
    return the new row version. The object `topic` keeps its values, so a second call with the same object raises
    LostRace.

    Raises LostRace if the row has changed since `topic` was read, or does not exist. The names in `changes` come from
    the program, never from input.
    """
    statement = (
        update(TOPIC)
        .where(TOPIC.c.topic_id == topic.topic_id, TOPIC.c.row_version == topic.row_version)
        .values(**changes, row_version=topic.row_version + 1)
    )
    if tx.execute(statement).rowcount != 1:
        raise LostRace(
            f"topic {topic.name} has changed since row version {topic.row_version} was read; read the topic again and repeat",
            what="topic",
        )
    return topic.row_version + 1


def _row(tx: Connection, *conditions: ColumnElement[bool], lock: bool) -> Row[Any] | None:
    """Return the one topic row that fulfils all conditions; None if there is none. With `lock`, the row is locked against other writers."""
    query = select(*TOPIC.c).where(*conditions)
    return tx.execute(query.with_for_update(key_share=True) if lock else query).one_or_none()


def _topic(row: Row[Any]) -> TopicRow:
    return TopicRow(**{**row._mapping, "state": TopicState(row.state)})
