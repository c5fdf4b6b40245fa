"""Reads which segments may soon be replaced, so that their buckets are not moved between consumers just before."""

from __future__ import annotations

from sqlalchemy import Connection, text

# A registration makes the evaluation of its topic pending in the same transaction, so that a consumer's first settlement
# already waits for the decision. A paused topic (not_before) is not evaluated, so nothing waits for it.
_SEGMENTS = """
    SELECT s.segment_id FROM cleave.segment s
     WHERE s.topic_id = :topic_id AND s.state = 'ACTIVE'
       AND (EXISTS (SELECT FROM cleave.evaluation e
                     WHERE e.topic_id = s.topic_id AND e.consumer_version < e.input_version
                       AND e.not_before <= clock_timestamp())
         OR EXISTS (SELECT FROM cleave.operation_parent p
                     WHERE p.topic_id = s.topic_id AND p.segment_id = s.segment_id AND p.live))
"""


def segments_before_reshape(tx: Connection, topic_id: int) -> frozenset[int]:
    """Return the ids of the ACTIVE segments that a live operation will replace; all ACTIVE segments while the topic
    waits to be evaluated for its consumers (and its evaluation is not deferred), because the decision may replace any
    of them. Empty for an unknown topic.
    """
    return frozenset(tx.execute(text(_SEGMENTS), {"topic_id": topic_id}).scalars())
