"""Deletes the load of segments that were pruned, replaced or deleted."""

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
"""Statement that deletes the load memory, key histogram, producers and load record of the segments `segment_ids` of `topic_id`."""
