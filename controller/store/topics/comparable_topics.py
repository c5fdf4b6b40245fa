"""Selects the topics whose logs the reconciler compares with the journal."""

from __future__ import annotations

from sqlalchemy import Connection, text

from controller.store.shards import Shards, filter_of

_COMPARABLE = text("""
    SELECT t.topic_id
      FROM cleave.topic t
     WHERE t.topic_id > :after
       AND (t.state <> 'deleted' OR t.deleted_at > clock_timestamp() - :deleted_hours * interval '1 hour')
       AND (CAST(:shards AS bigint[]) IS NULL
            OR t.topic_id % CAST(:shard_count AS bigint) = ANY (CAST(:shards AS bigint[])))
     ORDER BY t.topic_id
     LIMIT :limit""")


def comparable_topics(
    tx: Connection, *, limit: int, after: int = 0, deleted_hours: float = 24.0, shards: Shards | None = None
) -> list[int]:
    """Return up to `limit` ids above `after`, ascending, of topics of the shards (None: all) to compare: topics that are
    not deleted, and topics deleted within `deleted_hours`, because a delayed call may still create one of their logs.
    """
    rows = tx.execute(
        _COMPARABLE, {"limit": limit, "after": after, "deleted_hours": deleted_hours, **filter_of(shards)}
    )
    return [row.topic_id for row in rows]
