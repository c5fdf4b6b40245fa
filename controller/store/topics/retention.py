"""Reads sealed segments whose retention time has passed, which garbage collection checks.

The data plane reports whether the segments are drained, and `topic_intents.intend_prune` prunes them. Ages are by the clock of the
database.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, text

from controller.store.shards import Shards, filter_of
from controller.store.topics.held_topics import MAY_ACT

RETENTION_PROPERTY = "retention_minutes"
"""Topic property that overrides the setting. A negative value, or a value of another form than `RETENTION_FORM`, keeps segments without a
limit.
"""
RETENTION_FORM = "^-?[0-9]{1,9}([.][0-9]{1,6})?$"
"""Form of the property's value, in minutes, as a regular expression of Python and of PostgreSQL."""


@dataclass(frozen=True, slots=True)
class ExpiredTopic:
    """A live topic with sealed segments whose retention time has passed, by segment id."""

    topic_id: int
    name: str
    data_plane: str
    segment_ids: tuple[int, ...]


_EXPIRED = text(f"""
    WITH retention AS (
        SELECT t.topic_id, t.name, t.data_plane,
               CASE WHEN NOT t.properties ? :property THEN CAST(:default_minutes AS double precision)
                    WHEN t.properties ->> :property ~ :form
                    THEN CAST(t.properties ->> :property AS double precision)
                    ELSE -1 END AS minutes
          FROM cleave.topic t
         WHERE t.state = 'live' AND t.topic_id > :after AND {MAY_ACT}
           AND (CAST(:shards AS bigint[]) IS NULL
                OR t.topic_id % CAST(:shard_count AS bigint) = ANY (CAST(:shards AS bigint[])))
    )
    SELECT r.topic_id, r.name, r.data_plane, array_agg(s.segment_id ORDER BY s.segment_id) AS segment_ids
      FROM cleave.segment s JOIN retention r USING (topic_id)
     WHERE s.state = 'SEALED' AND s.pruned_epoch IS NULL
       AND s.sealed_at > 'epoch' -- the seal time of a migrated segment is not known and is stored as the Unix epoch
       AND r.minutes >= 0 AND s.sealed_at <= clock_timestamp() - r.minutes * interval '1 minute'
       AND NOT EXISTS (SELECT FROM cleave.operation_parent p
                        WHERE p.topic_id = s.topic_id AND p.segment_id = s.segment_id AND p.live)
     GROUP BY r.topic_id, r.name, r.data_plane
     ORDER BY r.topic_id
     LIMIT :limit""")  # noqa: S608 - constants only


def expired_topics(
    tx: Connection, *, default_minutes: float, limit: int, after: int = 0, shards: Shards | None = None
) -> Sequence[ExpiredTopic]:
    """Return up to `limit` live topics with ids above `after`, by id, that have expired segments: sealed segments that are not pruned,
    are in no live operation, and were sealed at least the retention time ago. A topic without a retention time of its own has
    `default_minutes`; with a negative time, and for a segment whose seal time is not known, nothing expires. A topic that is held or
    has to be verified first is left out. `shards` None: all topics.
    """
    rows = tx.execute(
        _EXPIRED,
        {
            "property": RETENTION_PROPERTY,
            "form": RETENTION_FORM,
            "default_minutes": default_minutes,
            "limit": limit,
            "after": after,
            **filter_of(shards),
        },
    )
    return [ExpiredTopic(row.topic_id, row.name, row.data_plane, tuple(row.segment_ids)) for row in rows]
