"""A segment: parents and children, the operations on it with actor and reason, and its load."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection

from controller.domain.errors import NotFound
from controller.domain.names import topic_name
from controller.domain.operation import OperationState
from controller.pages.context import MAX_ROWS, Id, Reading, Text
from controller.questions.history import LIST_LAYOUT_CHANGES, LIST_LOAD_HISTORY, LIST_SEGMENTS
from controller.questions.operations import LIST_OPERATIONS
from controller.questions.question import Row, read_answers
from controller.store.topics import inspector_reads
from controller.store.topics.inspector_reads import InspectedTopic


def page(tx: Reading, name: Text, segment_id: Id) -> dict[str, Any]:
    """Return one segment with its parents, children, layout changes, operations that are live or were aborted, and load. Raises
    InvalidInput, TopicNotFound, and NotFound for an unknown segment.
    """
    topic = inspector_reads.find_topic(tx, topic_name(name))
    rows = _segments(tx, topic, [segment_id])
    if not rows:
        raise NotFound(
            f"topic {topic.name} has no segment {segment_id}; the page of the topic lists its segments"
        )
    [segment] = rows
    epochs = [segment[f"{what}_epoch"] for what in ("created", "sealed", "pruned")]
    return {
        "topic": topic.name,
        "segment": segment,
        "parents": _segments(tx, topic, segment["parents"]),
        "children": _segments(tx, topic, segment["children"]),
        "changes": read_answers(tx, LIST_LAYOUT_CHANGES, order="epoch", epoch=epochs, **topic.key),
        "operations": _unfinished(tx, topic, segment_id),
        "loads": read_answers(tx, LIST_LOAD_HISTORY, MAX_ROWS + 1, segment_id=segment_id, **topic.key),
    }


def _segments(tx: Connection, topic: InspectedTopic, ids: list[int]) -> list[Row]:
    """Return the segments of the topic with these ids, pruned segments included, in the order of their ranges."""
    return read_answers(tx, LIST_SEGMENTS, order="range_start", segment_id=ids, **topic.key)


def _unfinished(tx: Connection, topic: InspectedTopic, segment_id: int) -> list[Row]:
    """Return the newest 20 operations on the segment that are live or were aborted, live ones first; the history of the layout has the
    others.
    """
    states = [state for state in OperationState if state is not OperationState.DONE]
    order = "live DESC, operation_id DESC"
    return read_answers(
        tx, LIST_OPERATIONS, 20, order=order, state=states, segment_id=segment_id, **topic.key
    )
