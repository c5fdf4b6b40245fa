"""The intent of a reshape in two statements: one that looks, one that writes if nothing has moved since.

Serves ``intents``, the one door. The look takes everything from one snapshot and locks nothing. The write hangs on
the topic's row version, which every intent and every commit raises, so that a plan made on what has changed writes
nothing. Operation, parents and children are written by the same statement, all or none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, Row

from controller.clock import to_ms
from controller.domain.errors import (
    InvalidLayoutChange,
    LostRace,
    SegmentBusy,
    SegmentNotFound,
    TopicNotFound,
    TopicNotLive,
)
from controller.domain.hash_range import HashRange
from controller.domain.layout import SegmentLayout
from controller.domain.operation import Operation, OperationKind, OperationState, ReservedChild
from controller.domain.policy import AutoScalePolicy
from controller.domain.reshape import Reshape
from controller.domain.segment import Segment, segment_descriptor
from controller.store import layouts
from controller.store.journal import BackingTopic, Request
from controller.store.policies import read_policy
from controller.store.prepared import Prepared
from controller.store.topics import TopicState

_LOOK = """
    SELECT t.topic_id, t.name, t.state, t.data_plane, t.epoch, t.next_segment_id, t.row_version, e.input_version,
           (SELECT o.operation_id FROM cleave.operation o WHERE o.request_key = :request_key) AS first_id,
           (SELECT CAST(c.policy AS text) FROM cleave.cluster_policy c) AS cluster_policy,
           (SELECT jsonb_agg(jsonb_build_array(s.segment_id, s.range_start, s.range_end, s.bucket_splits, s.merge_depth,
                                               s.created_epoch, s.backing_topic))
              FROM cleave.segment s WHERE s.topic_id = t.topic_id AND s.state = 'ACTIVE') AS segments,
           (SELECT jsonb_agg(jsonb_build_array(p.segment_id, p.operation_id))
              FROM cleave.operation_parent p WHERE p.topic_id = t.topic_id AND p.live) AS busy
      FROM cleave.topic t LEFT JOIN cleave.evaluation e USING (topic_id)
     WHERE {which}
"""
_BY_ID = Prepared(
    "look_by_id", _LOOK.format(which="t.topic_id = :topic"), {"topic": "bigint", "request_key": "text"}
)
_BY_NAME = Prepared(
    "look_by_name",
    _LOOK.format(which="t.name = :topic AND t.state <> 'deleted'"),
    {"topic": "text", "request_key": "text"},
)
# What hangs on the row that passed the comparison is written with it or not at all.
_WRITE = Prepared(
    "write_reshape",
    """
    WITH topic AS (
        UPDATE cleave.topic t
           SET next_segment_id = greatest(t.next_segment_id, :reserved), row_version = t.row_version + 1
         WHERE t.topic_id = :topic_id AND t.row_version = :row_version AND t.state = 'live'
           AND (CAST(:input_version AS bigint) IS NULL
                OR EXISTS (SELECT FROM cleave.evaluation e
                            WHERE e.topic_id = :topic_id AND e.input_version = CAST(:input_version AS bigint)))
     RETURNING t.topic_id)
    , operation AS (
        INSERT INTO cleave.operation
               (topic_id, kind, request_key, origin, actor, reason, decision_id, deadline)
        SELECT topic_id, :kind, :request_key, :origin, :actor, :reason, CAST(:decision_id AS bigint),
               clock_timestamp() + make_interval(secs => :deadline_seconds)
          FROM topic
     RETURNING operation_id, topic_id, deadline)
    , parent AS (
        INSERT INTO cleave.operation_parent (operation_id, topic_id, segment_id, ordinal)
        SELECT o.operation_id, o.topic_id, p.segment_id, p.ordinal - 1
          FROM operation o CROSS JOIN unnest(CAST(:parent_ids AS bigint[])) WITH ORDINALITY AS p (segment_id, ordinal))
    , child AS (
        INSERT INTO cleave.operation_child
               (operation_id, topic_id, segment_id, range_start, range_end, ordinal, bucket_splits, backing_topic)
        SELECT o.operation_id, o.topic_id, c.segment_id, c.range_start, c.range_end, c.ordinal, c.bucket_splits,
               c.backing_topic
          FROM operation o
         CROSS JOIN jsonb_to_recordset(CAST(:children AS jsonb)) AS c (
               segment_id bigint, range_start integer, range_end integer, ordinal integer, bucket_splits integer[],
               backing_topic text))
    SELECT operation_id, deadline FROM operation
""",
    {
        "topic_id": "bigint",
        "row_version": "bigint",
        "input_version": "bigint",
        "reserved": "bigint",
        "kind": "text",
        "request_key": "text",
        "origin": "text",
        "actor": "text",
        "reason": "text",
        "decision_id": "bigint",
        "deadline_seconds": "float8",
        "parent_ids": "bigint[]",
        "children": "text",
    },
)


@dataclass(frozen=True, slots=True)
class Seen:
    """What there was to see of a topic at one instant; ``layout`` holds its ACTIVE segments alone."""

    topic_id: int
    name: str
    state: TopicState
    data_plane: str
    row_version: int
    input_version: int | None
    layout: SegmentLayout
    cluster_policy: AutoScalePolicy
    backing_topics: Mapping[int, str]
    busy: Mapping[int, int]
    """The live operation each busy segment is in."""
    first_id: int | None
    """The operation the request key was used for already."""


def look(tx: Connection, topic: int | str, request_key: str) -> Seen:
    """Everything the intent needs, by the topic's id or name. Raises TopicNotFound."""
    statement = _BY_ID if isinstance(topic, int) else _BY_NAME
    row = statement.execute(tx, {"topic": topic, "request_key": request_key}).one_or_none()
    if row is None:
        raise TopicNotFound(
            f"topic {topic} does not exist; look its id up by name"
            if isinstance(topic, int)
            else f"topic {topic} does not exist; create it or check the name"
        )
    return _seen(row)


def plan(
    tx: Connection,
    seen: Seen,
    build: Callable[[SegmentLayout], Reshape],
    *,
    epoch: int | None = None,
    input_version: int | None = None,
) -> Reshape:
    """What ``build`` plans, if the topic is live, the inputs are those given and the segments are free.

    Raises TopicNotLive, LostRace, SegmentBusy, and what ``build`` raises on the whole layout, sealed segments
    included, which knows better what to say.
    """
    if seen.state is not TopicState.LIVE:
        raise TopicNotLive(f"topic {seen.name} is {seen.state}; only a live topic takes requests")
    if epoch not in (None, seen.layout.epoch):
        raise LostRace(f"topic {seen.name} is at epoch {seen.layout.epoch}, not {epoch}; read it again", 0.0)
    if input_version not in (None, seen.input_version):
        raise LostRace(
            f"inputs of topic {seen.name} are at version {seen.input_version}, not {input_version}; decide again",
            0.0,
        )
    try:
        planned = _valid(build, seen.layout)
    except (SegmentNotFound, InvalidLayoutChange):
        planned = _valid(build, layouts.load_layout(tx, seen.topic_id))
    for segment_id in sorted(set(planned.parent_ids) & seen.busy.keys()):
        raise SegmentBusy(
            f"segment {segment_id} of topic {seen.name} is in live operation {seen.busy[segment_id]}; wait for it"
        )
    return planned


def write(
    tx: Connection,
    seen: Seen,
    planned: Reshape,
    request: Request,
    backing_topic: BackingTopic,
    *,
    input_version: int | None = None,
) -> Operation | None:
    """The operation, reserved ids and all; None when the topic's row has moved on: look again."""
    children = [
        ReservedChild(child, backing_topic(seen.name, segment_descriptor(child.hash_range, child.segment_id)))
        for child in planned.children
    ]
    parameters = {
        "topic_id": seen.topic_id,
        "row_version": seen.row_version,
        "input_version": input_version,
        "reserved": max(child.segment_id for child in planned.children) + 1,
        "kind": planned.kind.value,
        "request_key": request.request_key,
        "origin": request.origin.value,
        "actor": request.actor,
        "reason": request.reason,
        "decision_id": request.decision_id,
        "deadline_seconds": request.deadline_seconds,
        "parent_ids": list(planned.parent_ids),
        "children": json.dumps([_document(child, ordinal) for ordinal, child in enumerate(children)]),
    }
    row = _WRITE.execute(tx, parameters).one_or_none()
    if row is None:
        return None
    return Operation(
        operation_id=row.operation_id,
        topic_id=seen.topic_id,
        topic_name=seen.name,
        data_plane=seen.data_plane,
        kind=OperationKind(planned.kind.value),
        state=OperationState.INTENDED,
        origin=request.origin,
        actor=request.actor,
        reason=request.reason,
        request_key=request.request_key,
        parent_ids=planned.parent_ids,
        parent_topics=tuple(seen.backing_topics[segment_id] for segment_id in planned.parent_ids),
        children=tuple(children),
        deadline_at_ms=to_ms(row.deadline),
    )


def _document(child: ReservedChild, ordinal: int) -> dict[str, object]:
    return {
        "segment_id": child.plan.segment_id,
        "range_start": child.plan.hash_range.start,
        "range_end": child.plan.hash_range.end,
        "ordinal": ordinal,
        "bucket_splits": child.plan.bucket_splits,
        "backing_topic": child.backing_topic,
    }


def _valid(build: Callable[[SegmentLayout], Reshape], layout: SegmentLayout) -> Reshape:
    planned = build(layout)
    planned.validate_against(layout)
    return planned


def _seen(row: Row[Any]) -> Seen:
    segments = row.segments or ()
    layout = SegmentLayout.from_segments(
        row.epoch,
        row.next_segment_id,
        (
            Segment(
                segment_id,
                HashRange(start, end),
                bucket_splits=tuple(splits),
                merge_depth=depth,
                created_epoch=created_epoch,
            )
            for segment_id, start, end, splits, depth, created_epoch, _ in segments
        ),
    )
    return Seen(
        topic_id=row.topic_id,
        name=row.name,
        state=TopicState(row.state),
        data_plane=row.data_plane,
        row_version=row.row_version,
        input_version=row.input_version,
        layout=layout,
        cluster_policy=_policy(row.cluster_policy),
        backing_topics={one[0]: one[-1] for one in segments},
        busy=dict(row.busy or ()),
        first_id=row.first_id,
    )


@lru_cache(maxsize=64)
def _policy(document: str | None) -> AutoScalePolicy:
    return read_policy(json.loads(document or "{}"))
