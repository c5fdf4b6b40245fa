"""Mirrored topics, whose layout a broker keeps (Pulsar 5).

This module reads and writes the row with the earlier policy of the broker's auto-scaler. `mirrored_layouts` writes the layout that was read;
`journal.mirror_intents` attaches and detaches a topic; the data plane calls the broker.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, text

from controller.domain.errors import LostRace
from controller.store.shards import Shards, filter_of
from controller.store.topics import topics


@dataclass(frozen=True, slots=True)
class Mirror:
    """A mirrored topic. `paused_reason` is the reason for which Cleave does not act on the topic; None if it acts.

    `policy_before` is the policy that the broker's auto-scaler had before Cleave turned it off; None if the topic had
    none. `checked_epoch` is the newest layout epoch at which all segments had logs; -1 before the first check.
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
     ORDER BY m.topic_id = ANY (CAST(:last AS bigint[])), m.seen_at LIMIT :limit
"""


def get_mirror(tx: Connection, topic_id: int) -> Mirror | None:
    """Return the mirror of the topic. None if Cleave keeps the layout, if the topic is deleted or unknown, or if its attachment has not
    stored a mirror yet.
    """
    row = tx.execute(text(_MIRROR), {"topic_id": topic_id}).one_or_none()
    return None if row is None else Mirror(*row)


def remember_policy(tx: Connection, topic_id: int, policy: Mapping[str, Any] | None) -> Mirror:
    """Store the policy that the broker's auto-scaler had before the first change by Cleave (None: the auto-scaler had
    no policy), and return the mirror. If a mirror is stored already, its policy is not replaced, and the stored
    mirror is returned.

    Raises LostRace if no mirror is stored and the topic is not in state creating, because the attachment has ended
    and the policy would never be restored.
    """
    document = None if policy is None else json.dumps(dict(policy))
    tx.execute(text(_REMEMBER), {"topic_id": topic_id, "policy": document})
    mirror = get_mirror(tx, topic_id)
    if mirror is None:
        raise LostRace(
            f"topic {topics.name_of(tx, topic_id)} is no longer being attached; read it again",
            0.0,
            what="mirror",
        )
    return mirror


def record_look(tx: Connection, mirror: Mirror, paused_reason: str | None) -> None:
    """Record that the broker was read at this time, and replace the reason for which Cleave does not act on the topic
    by `paused_reason` (None: Cleave acts). Raises LostRace, and changes nothing, if the row has changed since
    `mirror` was read or does not exist.
    """
    parameters = {
        "topic_id": mirror.topic_id,
        "row_version": mirror.row_version,
        "paused_reason": paused_reason,
    }
    if tx.execute(text(_SEEN), parameters).rowcount != 1:
        raise LostRace(
            f"mirror of topic {topics.name_of(tx, mirror.topic_id)} has changed since it was read; read it again",
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
    last: Collection[int] = (),
) -> list[int]:
    """Return the ids of up to `limit` live topics on these planes and shards (None: all) whose broker was last read at least
    `older_than_seconds` ago, oldest read first; the topics whose ids are in `last` come after all others.
    """
    bounds = {
        "planes": list(planes),
        "older_than_seconds": older_than_seconds,
        "limit": limit,
        "last": sorted(last),
    }
    return list(tx.execute(text(_DUE), bounds | filter_of(shards)).scalars())
