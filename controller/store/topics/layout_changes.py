"""Layout changes: one row of history per epoch, written by the commit of the epoch and never changed.

Services that publish changes read them by topic and epoch, as notifications name them, or since a time.
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
    """One layout change of a topic. `sealed` and `created` are the ids of the parents and of the reserved children of its
    operation: `sealed` of a prune holds the segments that its intent named, and `created` is empty if a broker chose the
    ids. Both are empty for a change without an operation.
    """

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
    """Return the changes with these topic ids and epochs, oldest first. Changes that do not exist are absent."""
    parameters = {"topic_ids": [topic_id for topic_id, _ in changes], "epochs": [e for _, e in changes]}
    return [_event(row) for row in tx.execute(_CHANGES, parameters)]


Place = tuple[datetime, int, int]
"""Position in the history of all layouts: time, topic id and epoch."""


def since(tx: Connection, place: Place, limit: int) -> list[LayoutEvent]:
    """Return up to `limit` changes of all topics after the position, exclusive, oldest first.

    The time of a change is set before its commit, so a change may become visible with a position that was read already. A caller
    that must not miss a change starts at an earlier position.
    """
    instant, topic_id, epoch = place
    rows = tx.execute(_SINCE, {"instant": instant, "topic_id": topic_id, "epoch": epoch, "limit": limit})
    return [_event(row) for row in rows]


def _event(row: Row[Any]) -> LayoutEvent:
    return LayoutEvent(**{**row._mapping, "sealed": tuple(row.sealed), "created": tuple(row.created)})


def write(tx: Connection, topic: TopicRow, operation: Operation, epoch: int) -> datetime:
    """Write the history row of the epoch that the operation makes, and set the epoch of the operation. Return the
    time of the row. The caller changes the epoch of the topic row. Reshapes do not use this function, because the
    statement that commits a reshape writes the history row itself. An epoch that has a row already breaks a
    constraint.
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
