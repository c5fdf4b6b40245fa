"""A topic's layout as its producers and consumers are told of it: the ACTIVE segments, and the log behind each.

One statement, so that it is of one moment. It is no larger for a topic that was reshaped ten thousand times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, text

from controller.domain.errors import TopicNotFound, TopicNotLive
from controller.domain.layout import SegmentLayout
from controller.store.topics.layouts import layout_of

_PUBLISHED = """
    SELECT t.topic_id, t.name, t.state, t.data_plane, t.epoch, t.next_segment_id,
           s.segment_id, s.range_start, s.range_end, s.merge_depth, s.bucket_splits, s.created_epoch, s.sealed_epoch,
           s.created_at, s.sealed_at, s.legacy_topic_name, s.backing_topic, CAST('{{}}' AS bigint[]) AS parent_ids
      FROM cleave.topic t LEFT JOIN cleave.segment s ON s.topic_id = t.topic_id AND s.state = 'ACTIVE'
     WHERE {which} AND t.state <> 'deleted'
"""
_BY_NAME = text(_PUBLISHED.format(which="t.name = :name"))
_BY_ID = text(_PUBLISHED.format(which="t.topic_id = :topic_id"))


@dataclass(frozen=True, slots=True)
class PublishedLayout:
    """`layout` holds the ACTIVE segments alone."""

    topic_id: int
    name: str
    data_plane: str
    layout: SegmentLayout
    backing_topics: Mapping[int, str]


def published_layout(tx: Connection, topic: str | int) -> PublishedLayout:
    """The layout of the topic of that name or id. Raises TopicNotFound, or TopicNotLive while it is being created."""
    statement, parameters = (
        (_BY_NAME, {"name": topic}) if isinstance(topic, str) else (_BY_ID, {"topic_id": topic})
    )
    rows = tx.execute(statement, parameters).all()
    if not rows:
        raise TopicNotFound(f"no topic {topic}; create it, or check the name")
    if rows[0].state == "creating":
        raise TopicNotLive(f"{rows[0].name} is still being created; try again in a moment")
    return PublishedLayout(
        rows[0].topic_id,
        rows[0].name,
        rows[0].data_plane,
        layout_of(rows),
        {row.segment_id: row.backing_topic for row in rows if row.segment_id is not None},
    )
