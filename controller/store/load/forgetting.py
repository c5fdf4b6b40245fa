"""What is known of the load of segments goes with them."""

from __future__ import annotations

FORGET_LOADS = """
    WITH forgotten AS (
        DELETE FROM cleave.load_memory WHERE topic_id = :topic_id AND segment_id = ANY (:segment_ids)),
    unsketched AS (
        DELETE FROM cleave.segment_sketch WHERE topic_id = :topic_id AND segment_id = ANY (:segment_ids)),
    uncounted AS (
        DELETE FROM cleave.segment_producers WHERE topic_id = :topic_id AND segment_id = ANY (:segment_ids))
    DELETE FROM cleave.segment_load WHERE topic_id = :topic_id AND segment_id = ANY (:segment_ids)
"""
"""Of the segments `segment_ids` of `topic_id`."""
