"""What changed a layout, read for whoever tells others about it: by topic and epoch, as notifications name them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, text

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
