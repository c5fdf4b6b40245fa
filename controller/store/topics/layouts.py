"""Reads present layouts from the rows of segments, and writes the rows of created segments.

Each read is one statement, so that a concurrent commit cannot mix two epochs. `journal.commits` changes layouts.
`inspector_reads` reads past layouts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, insert, text

from controller.clock import to_datetime, to_ms
from controller.domain.errors import TopicNotFound
from controller.domain.hash_range import HashRange
from controller.domain.layout import SegmentLayout
from controller.domain.segment import Segment, SegmentState
from controller.store.postgres.rows_by_topic import rows_by_topic
from controller.store.postgres.tables import SEGMENT, SEGMENT_PARENT

SEGMENT_COLUMNS = """s.segment_id, s.range_start, s.range_end, s.merge_depth, s.bucket_splits, s.created_epoch, s.sealed_epoch,
       s.created_at, s.sealed_at, s.legacy_topic_name"""
"""Columns of segment `s` that `layout_of` reads, together with `parent_ids`."""
PARENT_IDS = """ARRAY(SELECT p.parent_id FROM cleave.segment_parent p
              WHERE p.topic_id = s.topic_id AND p.child_id = s.segment_id ORDER BY p.ordinal, p.parent_id)"""
"""The column `parent_ids` of segment `s`."""
_NOW = f"""
    SELECT t.topic_id, t.epoch, t.next_segment_id, {SEGMENT_COLUMNS}, {PARENT_IDS} AS parent_ids
      FROM cleave.topic t
      LEFT JOIN cleave.segment s ON s.topic_id = t.topic_id AND s.pruned_epoch IS NULL
     WHERE t.topic_id = ANY (:topic_ids)
"""  # noqa: S608 - constants only


def load_layout(tx: Connection, topic_id: int) -> SegmentLayout:
    """Return the present layout of the topic: the ACTIVE segments, and the sealed segments that are not pruned. A
    topic whose deletion is in progress still has its segments. The layout has no segments while the topic is being
    created and after the topic was deleted. No row is locked. Raises TopicNotFound for an id that no topic has had.
    """
    layouts = load_layouts(tx, [topic_id])
    if topic_id not in layouts:
        raise TopicNotFound(f"topic {topic_id} does not exist; look up its id by name")
    return layouts[topic_id]


def load_layouts(tx: Connection, topic_ids: Collection[int]) -> dict[int, SegmentLayout]:
    """Return the present layouts of many topics, by topic id, from one statement. A layout has the ACTIVE segments
    and the sealed segments that are not pruned. A topic that is being created, and a deleted topic, have a layout
    without segments. An id without a topic is absent. No row is locked.
    """
    rows = tx.execute(text(_NOW), {"topic_ids": list(topic_ids)})
    return {topic_id: layout_of(topic_rows) for topic_id, topic_rows in rows_by_topic(rows).items()}


def insert_segments(
    tx: Connection,
    topic_id: int,
    segments: Iterable[Segment],
    backing_topics: Mapping[int, str],
    at: datetime | None = None,
    *,
    recorded: Collection[int] | None = None,
    log_tokens: Mapping[int, str] | None = None,
) -> None:
    """Insert the rows of segments, and the links to their parents. `backing_topics` has the log of each segment, by
    segment id. The topic row and the history are not changed.

    `at` is the time at which the segments were created, and sealed if they are SEALED. None: the times in `segments`,
    where an unknown time of a migrated segment is the Unix epoch. `recorded` contains the ids of the segments that
    have rows already; a link to a parent that neither is in `recorded` nor is inserted is left out. None: all links
    are written. `log_tokens` has the tokens of logs whose operations the journal lost, by segment id.

    A segment that has a row already breaks a constraint (IntegrityError). Raises KeyError for a segment without a log
    in `backing_topics`.
    """
    segment_list = list(segments)
    if not segment_list:
        return
    tx.execute(
        insert(SEGMENT),
        [
            {
                "topic_id": topic_id,
                "segment_id": segment.segment_id,
                "range_start": segment.hash_range.start,
                "range_end": segment.hash_range.end,
                "state": segment.state.value,
                "merge_depth": segment.merge_depth,
                "bucket_splits": list(segment.bucket_splits),
                "created_epoch": segment.created_epoch,
                "created_at": at or to_datetime(segment.created_at_ms),
                "sealed_epoch": segment.sealed_epoch,
                "sealed_at": None
                if segment.sealed_epoch is None
                else at or to_datetime(segment.sealed_at_ms or 0),
                "backing_topic": backing_topics[segment.segment_id],
                "legacy_topic_name": segment.legacy_topic_name,
                "log_token": (log_tokens or {}).get(segment.segment_id),
            }
            for segment in segment_list
        ],
    )
    present = None if recorded is None else {*recorded, *(segment.segment_id for segment in segment_list)}
    links = [
        {
            "topic_id": topic_id,
            "child_id": segment.segment_id,
            "parent_id": parent_id,
            "ordinal": ordinal,
        }
        for segment in segment_list
        for ordinal, parent_id in enumerate(segment.parent_ids)
        if present is None or parent_id in present
    ]
    if links:
        tx.execute(insert(SEGMENT_PARENT), links)


def layout_of(rows: Sequence[Row[Any]]) -> SegmentLayout:
    """Return the layout of the rows of one topic at one epoch, at least one row. Each row has the columns of the topic, and of one segment
    or none. A segment that was sealed after the epoch is ACTIVE in the layout.
    """
    first = rows[0]
    return SegmentLayout.from_selection(
        first.epoch,
        first.next_segment_id if first.next_segment_id is not None else 0,
        (_segment(row, first.epoch) for row in rows if row.segment_id is not None),
    )


def _segment(row: Row[Any], epoch: int) -> Segment:
    """Return the segment as it was at the epoch: a seal in a later epoch is left out."""
    is_sealed = row.sealed_epoch is not None and row.sealed_epoch <= epoch
    return Segment(
        segment_id=row.segment_id,
        hash_range=HashRange(row.range_start, row.range_end),
        state=SegmentState.SEALED if is_sealed else SegmentState.ACTIVE,
        parent_ids=tuple(row.parent_ids),
        created_epoch=row.created_epoch,
        sealed_epoch=row.sealed_epoch if is_sealed else None,
        created_at_ms=to_ms(row.created_at),
        sealed_at_ms=to_ms(row.sealed_at) if is_sealed else None,
        bucket_splits=tuple(row.bucket_splits),
        merge_depth=row.merge_depth,
        legacy_topic_name=row.legacy_topic_name,
    )
