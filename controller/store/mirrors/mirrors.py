"""Mirrors: topics whose layout a broker keeps (Pulsar 5), written into the same tables as those Cleave keeps.

Here are the intents to attach and to detach one, and the row that
remembers what the broker's own auto-scaler was set to. How a layout that was read becomes rows is `mirroring`'s;
talking to the broker is the data plane's. Ids and epochs are the broker's: nothing is reserved at an intent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, text

from controller.domain.errors import LostRace, TopicNotLive
from controller.domain.operation import MIRRORED, Operation, OperationKind
from controller.domain.policy import PolicyOverride
from controller.store.journal.operations import NewOperation, Request, write_operation
from controller.store.journal.request_keys import Intent, is_same, once
from controller.store.shards import Shards
from controller.store.topics import topics
from controller.store.topics.topics import TopicState


@dataclass(frozen=True, slots=True)
class Mirror:
    """One topic whose layout its broker keeps. `paused_reason`: why Cleave does not act on it, or None.

    `checked_epoch`: every segment of this layout, the newest such one, had its log.
    """

    topic_id: int
    policy_before: Mapping[str, Any] | None
    paused_reason: str | None
    row_version: int
    checked_epoch: int


_MIRROR = """
    SELECT topic_id, policy_before, paused_reason, row_version, checked_epoch FROM cleave.mirror WHERE topic_id = :topic_id
"""
_REMEMBER = """
    INSERT INTO cleave.mirror (topic_id, policy_before)
    SELECT topic_id, CAST(:policy AS jsonb) FROM cleave.topic WHERE topic_id = :topic_id AND state = 'creating' FOR SHARE
    ON CONFLICT (topic_id) DO NOTHING
"""
_SEEN = """
    UPDATE cleave.mirror
       SET paused_reason = :paused_reason, seen_at = clock_timestamp(), row_version = row_version + 1
     WHERE topic_id = :topic_id AND row_version = :row_version
"""
_DUE = """
    SELECT m.topic_id FROM cleave.mirror m JOIN cleave.topic t USING (topic_id)
     WHERE t.state = 'live' AND t.data_plane = ANY (:planes)
       AND m.seen_at <= clock_timestamp() - make_interval(secs => :older_than_seconds)
       AND (CAST(:shards AS bigint[]) IS NULL OR m.topic_id % CAST(:shard_count AS bigint) = ANY (CAST(:shards AS bigint[])))
     ORDER BY m.seen_at LIMIT :limit
"""


def get_mirror(tx: Connection, topic_id: int) -> Mirror | None:
    """The topic's row, or None where Cleave keeps the layout itself."""
    row = tx.execute(text(_MIRROR), {"topic_id": topic_id}).one_or_none()
    return None if row is None else Mirror(*row)


def remember_policy(tx: Connection, topic_id: int, policy: Mapping[str, Any] | None) -> Mirror:
    """What the broker's auto-scaler was set to for the topic before we touched it; the first word stands.

    Raises LostRace for a topic that is given up or gone: nobody would put the setting back.
    """
    document = None if policy is None else json.dumps(dict(policy))
    tx.execute(text(_REMEMBER), {"topic_id": topic_id, "policy": document})
    mirror = get_mirror(tx, topic_id)
    if mirror is None:
        raise LostRace(
            f"topic {topics.name_of(tx, topic_id)} is being attached no more; look again", 0.0, what="mirror"
        )
    return mirror


def record_look(tx: Connection, mirror: Mirror, paused_reason: str | None) -> None:
    """The broker was looked at, and this is why we may not act (None: we may). Raises LostRace."""
    seen = {"topic_id": mirror.topic_id, "row_version": mirror.row_version, "paused_reason": paused_reason}
    if tx.execute(text(_SEEN), seen).rowcount != 1:
        raise LostRace(
            f"mirror of topic {topics.name_of(tx, mirror.topic_id)} changed since it was read; look again",
            0.0,
            what="mirror",
        )


def due_mirrors(
    tx: Connection,
    planes: Sequence[str],
    *,
    older_than_seconds: float,
    limit: int,
    shards: Shards | None = None,
) -> list[int]:
    """Topics on these planes whose broker was last looked at so long ago, the longest first."""
    parameters = {"shard_count": None, "shards": None} if shards is None else shards.parameters
    found = {"planes": list(planes), "older_than_seconds": older_than_seconds, "limit": limit, **parameters}
    return list(tx.execute(text(_DUE), found).scalars())


def intend_attach(
    tx: Connection,
    name: str,
    *,
    data_plane: str,
    request: Request,
    segments: int | None = None,
    policy: PolicyOverride | None = None,
    properties: Mapping[str, str] | None = None,
) -> Intent:
    """Take over a topic the broker keeps; with `segments` it is made there first, with that many.

    Raises TopicExists, or LostRace when the name was used and freed meanwhile.
    """

    def act() -> Operation:
        topic = topics.insert_topic(
            tx,
            name,
            data_plane=data_plane,
            next_segment_id=topics.first_free_segment_id(tx, name),
            actor=request.actor,
            policy=policy,
            properties=properties,
        )
        new = NewOperation(OperationKind.ATTACH, parameters={MIRRORED: True, "create_segments": segments})
        return write_operation(tx, topic, new, request)

    return once(
        tx, request, act, lambda first: first.topic_name == name and first.kind is OperationKind.ATTACH
    )


def intend_detach(tx: Connection, topic_id: int, request: Request) -> Intent:
    """Give the topic back to the broker's own controller; its logs stay as they are.

    Raises TopicNotFound, TopicNotLive.
    """

    def act() -> Operation:
        topic = topics.get_topic(tx, topic_id, lock=True)
        if topic.state is not TopicState.LIVE:
            raise TopicNotLive(f"topic {topic.name} is {topic.state}; only a live topic can be detached")
        topics.update_topic(tx, topic, state=TopicState.DELETING.value)
        return write_operation(
            tx, topic, NewOperation(OperationKind.DETACH, parameters={MIRRORED: True}), request
        )

    return once(tx, request, act, lambda first: is_same(first, topic_id, OperationKind.DETACH))
