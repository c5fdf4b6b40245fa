"""A segment: where it came from and what came of it, who did that and why, and the load it had."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection

from controller.domain.errors import NotFound
from controller.domain.names import topic_name
from controller.entrypoints.pages import journal
from controller.entrypoints.pages.desk import MOST_ROWS
from controller.store.postgres import inspection
from controller.store.topics import inspected

_SEGMENT = "SELECT * FROM inspect.segments WHERE topic_id = :topic_id AND segment_id = :segment_id"
_RELATIVES = """
    SELECT segment_id, hash_range, state FROM inspect.segments
     WHERE topic_id = :topic_id AND segment_id = ANY (:ids) ORDER BY range_start
"""
_CHANGES = """
    SELECT epoch, committed_at, kind, origin, actor, reason, operation_id FROM inspect.layout_changes
     WHERE topic_id = :topic_id AND epoch = ANY (:epochs) ORDER BY epoch
"""
_LOADS = """
    SELECT recorded_at, msg_rate_in, byte_rate_in, msg_rate_out, byte_rate_out, source, cold_since FROM inspect.load_history
     WHERE topic_id = :topic_id AND segment_id = :segment_id ORDER BY recorded_at DESC LIMIT :limit
"""


def page(tx: Connection, name: str, segment_id: int) -> dict[str, Any]:
    """Raises InvalidInput, TopicNotFound, NotFound."""
    topic = inspected.find_topic(tx, topic_name(name))
    which: dict[str, Any] = {"topic_id": topic.topic_id, "segment_id": segment_id}
    found = inspection.rows(tx, _SEGMENT, **which)
    if not found:
        raise NotFound(f"topic {topic.name} has no segment {segment_id}; its page lists those it has")
    segment = found[0]
    epochs = [
        segment[name]
        for name in ("created_epoch", "sealed_epoch", "pruned_epoch")
        if segment[name] is not None
    ]
    return {
        "topic": topic.name,
        "segment": segment,
        "parents": inspection.rows(tx, _RELATIVES, topic_id=topic.topic_id, ids=segment["parents"]),
        "children": inspection.rows(tx, _RELATIVES, topic_id=topic.topic_id, ids=segment["children"]),
        "changes": inspection.rows(tx, _CHANGES, topic_id=topic.topic_id, epochs=epochs),
        "operations": journal.on_segment(tx, **which),
        "loads": inspection.rows(tx, _LOADS, **which, limit=MOST_ROWS + 1),
    }
