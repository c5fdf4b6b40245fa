"""Stores the number of producers of each segment, as its broker last reported it. `decisions/evaluation_inputs.py`
reads the numbers, which are part of the reshape cost.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection, text

SegmentKey = tuple[int, int]
"""Topic id and segment id."""

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
    """Store the numbers of connected producers of ACTIVE segments in place of the stored numbers. Ignore segments that are not ACTIVE."""
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
