"""Reads the layout of a topic, with the log of each segment, as producers and consumers get it.

One statement reads the layout, so that it is consistent. The result with ACTIVE segments does not grow with the number of past
reshapes. Consumers that store positions themselves need the sealed segments, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, text

from controller.domain.errors import TopicNotFound, TopicNotLive
from controller.domain.layout import SegmentLayout
from controller.store.topics.layouts import PARENT_IDS, SEGMENT_COLUMNS, layout_of

_PUBLISHED = f"""
    SELECT t.topic_id, t.name, t.state, t.data_plane, t.epoch, t.next_segment_id, {SEGMENT_COLUMNS}, s.backing_topic,
           {{parents}} AS parent_ids
      FROM cleave.topic t LEFT JOIN cleave.segment s ON s.topic_id = t.topic_id AND {{segments}}
     WHERE {{which}} AND t.state <> 'deleted'
"""  # noqa: S608 - constants only
_ACTIVE = {"segments": "s.state = 'ACTIVE'", "parents": "CAST('{}' AS bigint[])"}
_BY_NAME = text(_PUBLISHED.format(which="t.name = :name", **_ACTIVE))
_BY_ID = text(_PUBLISHED.format(which="t.topic_id = :topic_id", **_ACTIVE))
_WHOLE = text(
    _PUBLISHED.format(which="t.name = :name", segments="s.pruned_epoch IS NULL", parents=PARENT_IDS)
)


@dataclass(frozen=True, slots=True)
class PublishedLayout:
    """A layout with its logs, by segment id. `layout` holds the ACTIVE segments, or all segments that are not pruned, as requested."""

    topic_id: int
    name: str
    data_plane: str
    layout: SegmentLayout
    backing_topics: Mapping[int, str]


def published_layout(tx: Connection, topic: str | int) -> PublishedLayout:
    """Return the ACTIVE segments, without their parents, of the topic of that name (text) or id. The topic is live or being deleted. Raises
    TopicNotFound, also for a deleted topic, and TopicNotLive while the topic is being created.
    """
    statement, parameters = (
        (_BY_NAME, {"name": topic}) if isinstance(topic, str) else (_BY_ID, {"topic_id": topic})
    )
    return _published(topic, tx.execute(statement, parameters).all())


def published_segments(tx: Connection, topic: str) -> PublishedLayout:
    """Return all segments of the topic of that name that are not pruned, with their parents. The topic is live or being deleted. Raises
    TopicNotFound, also for a deleted topic, and TopicNotLive while the topic is being created.
    """
    return _published(topic, tx.execute(_WHOLE, {"name": topic}).all())


def _published(topic: str | int, rows: Sequence[Row[Any]]) -> PublishedLayout:
    """Return the layout and the logs that the rows of one topic contain. `topic`, a name or an id, is for the message. Raises TopicNotFound
    without a row, or TopicNotLive while the topic is being created.
    """
    if not rows:
        raise TopicNotFound(f"topic {topic} does not exist; create it or check the name")
    if rows[0].state == "creating":
        raise TopicNotLive(f"topic {rows[0].name} is still being created; retry in a moment")
    return PublishedLayout(
        rows[0].topic_id,
        rows[0].name,
        rows[0].data_plane,
        layout_of(rows),
        {row.segment_id: row.backing_topic for row in rows if row.segment_id is not None},
    )
