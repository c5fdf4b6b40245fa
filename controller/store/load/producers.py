"""How many producers each segment has, as its broker last said. Decisions read it in `decisions/situations.py`, as a part of what sealing a
segment costs.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection, text

SegmentKey = tuple[int, int]
"""Topic and segment."""

_RECORD = text("""
    INSERT INTO cleave.segment_producers AS p (topic_id, segment_id, connected)
    SELECT g.topic_id, g.segment_id, g.producers
      FROM unnest(CAST(:topic_id AS bigint[]), CAST(:segment_id AS bigint[]), CAST(:producers AS integer[]))
           AS g (topic_id, segment_id, producers)
      JOIN cleave.segment s ON s.topic_id = g.topic_id AND s.segment_id = g.segment_id AND s.state = 'ACTIVE'
     ORDER BY g.topic_id, g.segment_id
        ON CONFLICT (topic_id, segment_id) DO UPDATE
       SET connected = excluded.connected WHERE p.connected IS DISTINCT FROM excluded.connected
""")


def record(tx: Connection, counted: Mapping[SegmentKey, int]) -> None:
    """Keeps what was counted of ACTIVE segments; of others nobody asks."""
    if counted:
        keys = list(counted)
        tx.execute(
            _RECORD,
            {
                "topic_id": [topic_id for topic_id, _ in keys],
                "segment_id": [segment_id for _, segment_id in keys],
                "producers": [counted[key] for key in keys],
            },
        )
