"""Layout changes: one row of history an epoch, written by the commit that makes it and never changed.

Read here by services that tell others of a change: by topic and epoch, as notifications name them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, text

from controller.domain.operation import Operation
from controller.store.topics.topics import TopicRow

_CHANGES = text("""
    SELECT c.topic_id, t.name AS topic, c.epoch, c.kind, c.operation_id, c.origin, c.actor, c.reason, c.committed_at,
           ARRAY(SELECT p.segment_id FROM cleave.operation_parent p
                  WHERE p.operation_id = c.operation_id ORDER BY p.ordinal) AS sealed,
           ARRAY(SELECT d.segment_id FROM cleave.operation_child d
                  WHERE d.operation_id = c.operation_id ORDER BY d.ordinal) AS created
      FROM unnest(CAST(:topic_ids AS bigint[]), CAST(:epochs AS bigint[])) AS seen (topic_id, epoch)
      JOIN cleave.layout_change c USING (topic_id, epoch)
      JOIN cleave.topic t USING (topic_id)
     ORDER BY c.committed_at, c.topic_id, c.epoch
""")


_CHANGE = """
    WITH noted AS (UPDATE cleave.operation SET epoch = :epoch WHERE operation_id = :operation_id)
    INSERT INTO cleave.layout_change (topic_id, epoch, kind, operation_id, origin, actor, reason)
    VALUES (:topic_id, :epoch, :kind, :operation_id, :origin, :actor, :reason) RETURNING committed_at
"""


@dataclass(frozen=True, slots=True)
class LayoutEvent:
    """One epoch of one topic; `sealed` and `created` are segment ids of the operation behind it."""

    topic_id: int
    topic: str
    epoch: int
    kind: str
    operation_id: int | None
    origin: str
    actor: str
    reason: str
    committed_at: datetime
    sealed: tuple[int, ...]
    created: tuple[int, ...]


def events(tx: Connection, changes: Sequence[tuple[int, int]]) -> list[LayoutEvent]:
    """The changes named by topic id and epoch, oldest first; what is not there (any more) is left out."""
    parameters = {"topic_ids": [topic_id for topic_id, _ in changes], "epochs": [e for _, e in changes]}
    return [
        LayoutEvent(**{**row._mapping, "sealed": tuple(row.sealed), "created": tuple(row.created)})
        for row in tx.execute(_CHANGES, parameters)
    ]


def write(tx: Connection, topic: TopicRow, operation: Operation, epoch: int) -> datetime:
    """The operation's row of history under `epoch`, which the operation takes too; returns its instant.

    For one operation; reshapes write theirs in the statement that commits them.
    """
    change = {
        "topic_id": topic.topic_id,
        "epoch": epoch,
        "kind": operation.kind.value,
        "operation_id": operation.operation_id,
        "origin": operation.origin.value,
        "actor": operation.actor,
        "reason": operation.reason,
    }
    committed_at: datetime = tx.execute(text(_CHANGE), change).scalar_one()
    return committed_at
