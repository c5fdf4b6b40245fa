"""The live operations of the journal."""

from __future__ import annotations

from sqlalchemy import Connection, text

from controller.domain.operation import Operation
from controller.store.journal import operations

_LIVE = text("""
    SELECT operation_id FROM cleave.operation
     WHERE finished_at IS NULL AND (CAST(:topic_id AS bigint) IS NULL OR topic_id = :topic_id)
""")


def live_operations(tx: Connection, topic_id: int | None = None) -> list[Operation]:
    """Return the live operations of the topic (None: of all topics), newest first."""
    ids = tx.execute(_LIVE, {"topic_id": topic_id}).scalars().all()
    return operations.read_operations(tx, ids)[::-1]
