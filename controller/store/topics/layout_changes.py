"""Layout changes: one row of history an epoch, written by the commit that makes it and never changed.

Read here by services that tell others of a change: by topic and epoch, as notifications name them, or since an instant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, text

from controller.domain.operation import Operation
from controller.store.topics.topics import TopicRow

_COLUMNS = """
    SELECT c.topic_id, (SELECT t.name FROM cleave.topic t WHERE t.topic_id = c.topic_id) AS topic, c.epoch, c.kind, c.operation_id, c.origin, c.actor, c.reason, c.committed_at,
           ARRAY(SELECT p.segment_id FROM cleave.operation_parent p
                  WHERE p.operation_id = c.operation_id ORDER BY p.ordinal) AS sealed,
           ARRAY(SELECT d.segment_id FROM cleave.operation_child d
                  WHERE d.operation_id = c.operation_id ORDER BY d.ordinal) AS created
"""
_CHANGES = text(f"""
    {_COLUMNS}
      FROM unnest(CAST(:topic_ids AS bigint[]), CAST(:epochs AS bigint[])) AS seen (topic_id, epoch)
      JOIN cleave.layout_change c USING (topic_id, epoch)
     ORDER BY c.committed_at, c.topic_id, c.epoch
""")
_SINCE = text(f"""
    {_COLUMNS}
      FROM cleave.layout_change c
     WHERE c.committed_at >= :instant AND (c.committed_at, c.topic_id, c.epoch) > (:instant, :topic_id, :epoch)
     ORDER BY c.committed_at, c.topic_id, c.epoch LIMIT :limit
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
    return [_event(row) for row in tx.execute(_CHANGES, parameters)]


Place = tuple[datetime, int, int]
"""Where in the history of all layouts somebody is: instant, topic id and epoch."""


def since(tx: Connection, place: Place, limit: int) -> list[LayoutEvent]:
    """Changes of all topics after that place, oldest first.

    A change is stamped before it is committed, so one may come to be before a place that was read already. Whoever must
    not miss it begins a little earlier.
    """
    instant, topic_id, epoch = place
    rows = tx.execute(_SINCE, {"instant": instant, "topic_id": topic_id, "epoch": epoch, "limit": limit})
    return [_event(row) for row in rows]


def _event(row: Row[Any]) -> LayoutEvent:
    return LayoutEvent(**{**row._mapping, "sealed": tuple(row.sealed), "created": tuple(row.created)})


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
