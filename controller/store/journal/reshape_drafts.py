"""Intents of reshapes in two statements, for one topic or many: one looks, one writes what has not moved since.

Serves ``reshape_intents``, which is part of the one door. The look takes everything from one snapshot and locks
nothing. The write hangs on the topic's row version, which every intent and every commit raises, so that a plan made on
what has changed writes nothing. Operation, parents and children are written by the same statement, all or none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
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
from controller.store.journal.draft_statements import LOOK_BY_ID, LOOK_BY_NAME, WRITE
from controller.store.journal.rows import BackingTopic, Request
from controller.store.postgres.prepared import Prepared
from controller.store.topics import layouts
from controller.store.topics.policies import read_policy
from controller.store.topics.topics import TopicState


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


@dataclass(frozen=True, slots=True)
class ReshapeDraft:
    """What `write` is to make of a topic that still is as it was seen. ``input_version`` None: whatever that is."""

    seen: Seen
    planned: Reshape
    request: Request
    backing_topic: BackingTopic
    input_version: int | None = None


def look(tx: Connection, topic: int | str, request_key: str) -> Seen:
    """Everything the intent needs, by the topic's id or name. Raises TopicNotFound."""
    [seen] = (
        look_by_id(tx, [topic], [request_key])
        if isinstance(topic, int)
        else _looked(LOOK_BY_NAME, tx, [topic], [request_key])
    )
    if seen is None:
        raise TopicNotFound(
            f"topic {topic} does not exist; look its id up by name"
            if isinstance(topic, int)
            else f"topic {topic} does not exist; create it or check the name"
        )
    return seen


def look_by_id(tx: Connection, topic_ids: Sequence[int], request_keys: Sequence[str]) -> list[Seen | None]:
    """The same of several, in order; None for one that is not there."""
    return _looked(LOOK_BY_ID, tx, topic_ids, request_keys)


def _looked(
    statement: Prepared, tx: Connection, topics: Sequence[int | str], request_keys: Sequence[str]
) -> list[Seen | None]:
    rows = statement.execute(tx, {"topics": list(topics), "request_keys": list(request_keys)})
    found = {row.ordinal: _seen(row) for row in rows}
    return [found.get(ordinal) for ordinal in range(1, len(topics) + 1)]


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


def write(tx: Connection, drafts: Sequence[ReshapeDraft]) -> dict[int, Operation]:
    """The operations by topic id, reserved ids and all; without those whose topic has moved on: look again.

    One draft a topic at most. A request key in use, or a segment that is busy after all, fails them all.
    """
    children = {
        one.seen.topic_id: tuple(
            ReservedChild(
                child,
                one.backing_topic(one.seen.name, segment_descriptor(child.hash_range, child.segment_id)),
            )
            for child in one.planned.children
        )
        for one in drafts
    }
    parameters = {
        "topic_ids": [one.seen.topic_id for one in drafts],
        "row_versions": [one.seen.row_version for one in drafts],
        "input_versions": [one.input_version for one in drafts],
        "reserved": [max(child.segment_id for child in one.planned.children) + 1 for one in drafts],
        "kinds": [one.planned.kind.value for one in drafts],
        "request_keys": [one.request.request_key for one in drafts],
        "origins": [one.request.origin.value for one in drafts],
        "actors": [one.request.actor for one in drafts],
        "reasons": [one.request.reason for one in drafts],
        "decision_ids": [one.request.decision_id for one in drafts],
        "deadline_seconds": [one.request.deadline_seconds for one in drafts],
        "parents": [json.dumps(one.planned.parent_ids) for one in drafts],
        "children": [
            json.dumps(
                [_document(child, ordinal) for ordinal, child in enumerate(children[one.seen.topic_id])]
            )
            for one in drafts
        ],
    }
    written = {row.topic_id: row for row in WRITE.execute(tx, parameters)}
    return {
        one.seen.topic_id: _operation(one, children[one.seen.topic_id], written[one.seen.topic_id])
        for one in drafts
        if one.seen.topic_id in written
    }


def _operation(draft: ReshapeDraft, children: tuple[ReservedChild, ...], row: Row[Any]) -> Operation:
    seen, planned, request = draft.seen, draft.planned, draft.request
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
        children=children,
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
