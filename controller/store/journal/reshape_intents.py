"""Intents of reshapes: some segments are to be sealed in favour of others. Here the ids of the children are reserved.

Two statements, each for one topic or for many. `look` takes everything from one snapshot and locks nothing. `write`
hangs on the topic's row version, which every intent and every commit raises, so that a plan made on what has changed
writes nothing; operation, parents and children are written by the same statement, all or none. Planning in between, and
looking again when somebody was faster, is the caller's: a service. Topics are locked in the order of their ids.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, Row
from sqlalchemy.exc import IntegrityError

from controller.clock import to_ms
from controller.domain.errors import LostRace, TopicNotFound
from controller.domain.hash_range import HashRange
from controller.domain.layout import SegmentLayout
from controller.domain.operation import MIRRORED, Operation, OperationKind, OperationState, ReservedChild
from controller.domain.policy import AutoScalePolicy
from controller.domain.reshape import Reshape
from controller.domain.segment import Segment, segment_descriptor
from controller.domain.segment_graph import COUNTED_MERGES
from controller.store.journal import guards
from controller.store.journal.operations import (
    BackingTopic,
    Request,
    find_by_request_key,
    get_operation,
)
from controller.store.journal.request_keys import Intent, repeat
from controller.store.postgres.prepared import Prepared
from controller.store.topics.holds import MAY_ACT, WHY_NOT, demand_may_act
from controller.store.topics.policies import read_policy
from controller.store.topics.topics import TopicState, demand_live

_LOOK = f"""
    SELECT w.ordinal, t.topic_id, t.name, t.state, t.data_plane, t.epoch, t.next_segment_id, t.row_version,
           e.input_version, {WHY_NOT} AS why_not,
           (SELECT o.operation_id FROM cleave.operation o WHERE o.request_key = w.request_key) AS first_id,
           (SELECT CAST(c.policy AS text) FROM cleave.cluster_policy c) AS cluster_policy,
           (SELECT jsonb_agg(jsonb_build_array(s.segment_id, s.range_start, s.range_end, s.bucket_splits, s.merge_depth,
                                               s.created_epoch, s.backing_topic))
              FROM cleave.segment s WHERE s.topic_id = t.topic_id AND s.state = 'ACTIVE') AS segments,
           (SELECT jsonb_agg(jsonb_build_array(p.segment_id, p.operation_id))
              FROM cleave.operation_parent p WHERE p.topic_id = t.topic_id AND p.live) AS busy
      FROM unnest(:topics, :request_keys) WITH ORDINALITY AS w (topic, request_key, ordinal)
      JOIN cleave.topic t ON {{which}}
      LEFT JOIN cleave.evaluation e USING (topic_id)
"""
LOOK_BY_ID = Prepared(
    "look_by_id",
    _LOOK.format(which="t.topic_id = w.topic"),
    {"topics": "bigint[]", "request_keys": "text[]"},
)
LOOK_BY_NAME = Prepared(
    "look_by_name",
    _LOOK.format(which="t.name = w.topic AND t.state <> 'deleted'"),
    {"topics": "text[]", "request_keys": "text[]"},
)
# What hangs on the row that passed the comparison is written with it or not at all.
WRITE = Prepared(
    "write_reshapes",
    f"""WITH given AS MATERIALIZED (
        SELECT g.*
          FROM unnest(:topic_ids, :row_versions, :input_versions, :reserved, :kinds, :request_keys, :origins, :actors,
                      :reasons, :decision_ids, :deadline_seconds, :keep_seconds, :operation_parameters, :parents, :children)
            AS g (topic_id, row_version, input_version, reserved, kind, request_key, origin, actor, reason, decision_id,
                  deadline_seconds, keep_seconds, parameters, parents, children))
    , locked AS MATERIALIZED (
        SELECT topic_id FROM cleave.topic WHERE topic_id = ANY (:topic_ids) ORDER BY topic_id FOR NO KEY UPDATE)
    , topic AS (
        UPDATE cleave.topic t
           SET next_segment_id = greatest(t.next_segment_id, g.reserved), row_version = t.row_version + 1
          FROM locked JOIN given g USING (topic_id)
         WHERE t.topic_id = g.topic_id AND t.row_version = g.row_version AND t.state = 'live' AND {MAY_ACT}
           AND (g.input_version IS NULL
                OR g.input_version = (SELECT e.input_version FROM cleave.evaluation e WHERE e.topic_id = g.topic_id))
     RETURNING t.topic_id)
    , operation AS (
        INSERT INTO cleave.operation
               (topic_id, kind, request_key, origin, actor, reason, decision_id, parameters, deadline, kept_until)
        SELECT g.topic_id, g.kind, g.request_key, g.origin, g.actor, g.reason, g.decision_id, CAST(g.parameters AS jsonb),
               clock_timestamp() + make_interval(secs => g.deadline_seconds),
               clock_timestamp() + make_interval(secs => g.keep_seconds)
          FROM topic JOIN given g USING (topic_id) ORDER BY g.topic_id
     RETURNING operation_id, topic_id, deadline, token)
    , parent AS (
        INSERT INTO cleave.operation_parent (operation_id, topic_id, segment_id, ordinal)
        SELECT o.operation_id, o.topic_id, CAST(p.segment_id AS bigint), p.ordinal - 1
          FROM operation o JOIN given g USING (topic_id)
         CROSS JOIN LATERAL jsonb_array_elements_text(CAST(g.parents AS jsonb)) WITH ORDINALITY AS p (segment_id, ordinal))
    , child AS (
        INSERT INTO cleave.operation_child
               (operation_id, topic_id, segment_id, range_start, range_end, ordinal, bucket_splits, merge_depth,
                backing_topic)
        SELECT o.operation_id, o.topic_id, c.segment_id, c.range_start, c.range_end, c.ordinal, c.bucket_splits,
               c.merge_depth, c.backing_topic
          FROM operation o JOIN given g USING (topic_id)
         CROSS JOIN LATERAL jsonb_to_recordset(CAST(g.children AS jsonb)) AS c (
               segment_id bigint, range_start integer, range_end integer, ordinal integer, bucket_splits integer[],
               merge_depth integer, backing_topic text))
    SELECT operation_id, topic_id, deadline, CAST(token AS text) AS token FROM operation
    """,
    {
        "topic_ids": "bigint[]",
        "row_versions": "bigint[]",
        "input_versions": "bigint[]",
        "reserved": "bigint[]",
        "kinds": "text[]",
        "request_keys": "text[]",
        "origins": "text[]",
        "actors": "text[]",
        "reasons": "text[]",
        "decision_ids": "bigint[]",
        "deadline_seconds": "float8[]",
        "keep_seconds": "float8[]",
        "operation_parameters": "text[]",
        "parents": "text[]",
        "children": "text[]",
    },
)
# Merges among segments and everything they descend from, as far as it is not pruned: Pulsar's depth of what joins them.
# Of segments that one split has made none can be counted twice, so that their stored depth says it all. The parents of
# each one are looked up by its key (a join would read all of the topic's), and the walk ends with the last merge that is
# told apart, so that its cost does not grow with the topic's history.
_PRESENT_PARENTS = """ARRAY(
            SELECT l.parent_id FROM cleave.segment_parent l
             WHERE l.topic_id = :topic_id AND l.child_id = {child}
               AND (SELECT s.pruned_epoch IS NULL FROM cleave.segment s
                     WHERE s.topic_id = l.topic_id AND s.segment_id = l.parent_id))"""
MERGES_ABOVE = Prepared(
    "merges_above",
    f"""
    SELECT CASE WHEN (SELECT count(DISTINCT l.parent_id) FROM cleave.segment_parent l
                       WHERE l.topic_id = :topic_id AND l.child_id = ANY (:segment_ids)) = 1 THEN 0
           ELSE (
    WITH RECURSIVE above (segment_id, parent_ids) AS (
        SELECT own.segment_id, {_PRESENT_PARENTS.format(child="own.segment_id")}
          FROM unnest(:segment_ids) AS own (segment_id)
         UNION
        SELECT up.segment_id, {_PRESENT_PARENTS.format(child="up.segment_id")}
          FROM above a CROSS JOIN LATERAL unnest(a.parent_ids) AS up (segment_id))
    SELECT count(*) FROM (SELECT FROM above WHERE cardinality(parent_ids) >= 2 LIMIT :counted_merges) merge)
           END AS merges
""",
    {"topic_id": "bigint", "segment_ids": "bigint[]", "counted_merges": "bigint"},
)


@dataclass(frozen=True, slots=True)
class TopicView:
    """What there was to see of a topic at one instant; `layout` holds its ACTIVE segments alone."""

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
    """The live operation that each busy segment is in."""
    first_id: int | None
    """The operation that the request key was used for already."""
    why_not: str | None = None
    """Reason for which nothing acts on the topic; None if the topic may be acted on."""

    def demand_current(self, *, epoch: int | None = None, input_version: int | None = None) -> None:
        """Raises TopicNotLive, TopicHeld, or LostRace when the inputs are not those decided on; None: whatever they are."""
        demand_live(self.name, self.state)
        demand_may_act(self.name, self.why_not)
        guards.demand_unchanged(self.name, "epoch", self.layout.epoch, epoch)
        guards.demand_unchanged(self.name, "input version", self.input_version, input_version)


@dataclass(frozen=True, slots=True)
class ReshapeDraft:
    """What `write` is to make of a topic that is still as it was seen.

    `backing_topic` None: a broker keeps the layout and chooses ids and names, so nothing is reserved. `input_version`
    None: whatever that is by then.
    """

    view: TopicView
    planned: Reshape
    request: Request
    backing_topic: BackingTopic | None
    input_version: int | None = None

    def demand_possible(self) -> None:
        """Raises InvalidLayoutChange when the plan does not fit, SegmentBusy naming the operation in the way."""
        self.planned.validate_against(self.view.layout)
        guards.demand_free(self.view.name, self.view.busy, self.planned.parent_ids)


def look(tx: Connection, topic: int | str, request_key: str | None = None) -> TopicView:
    """Everything the intent needs, by the topic's id or name; no key for a look alone. Raises TopicNotFound."""
    [view] = (
        look_at_many(tx, [topic], [request_key])
        if isinstance(topic, int)
        else _views(LOOK_BY_NAME, tx, [topic], [request_key])
    )
    if view is None:
        raise TopicNotFound(
            f"topic {topic} does not exist; look its id up by name"
            if isinstance(topic, int)
            else f"topic {topic} does not exist; create it or check the name"
        )
    return view


def look_at_many(
    tx: Connection, topic_ids: Sequence[int], request_keys: Sequence[str | None]
) -> list[TopicView | None]:
    """The same of several, in order; None for one that is not there."""
    return _views(LOOK_BY_ID, tx, topic_ids, request_keys)


def first_intent(tx: Connection, view: TopicView, request: Request) -> Intent | None:
    """The answer to a repeated request key; None for a fresh one. Raises Conflict when it was for something else."""
    first = None if view.first_id is None else get_operation(tx, view.first_id)
    return None if first is None else _repeat(first, view, request)


def intend(tx: Connection, draft: ReshapeDraft) -> Intent:
    """Write one draft, whatever else the transaction does.

    Raises InvalidLayoutChange, SegmentBusy, LostRace where the topic has moved on, Conflict when the request key was
    used for something else meanwhile; a key used for the same gets that operation.
    """
    draft.demand_possible()
    try:
        with tx.begin_nested():
            written = write(tx, [draft]).get(draft.view.topic_id)
    except IntegrityError:
        first = _first_of_key(tx, draft)
        if first is None:
            raise
        return first
    if written is None:
        first = _first_of_key(tx, draft)
        if first is None:
            raise LostRace(f"topic {draft.view.name} changed meanwhile; look again", 0.0, what="intent")
        return first
    return Intent(written, repeated=False)


def write(tx: Connection, drafts: Sequence[ReshapeDraft]) -> dict[int, Operation]:
    """The operations by topic id, reserved ids and all; without those whose topic has moved on: look again.

    One draft a topic at most. A request key in use, or a segment that is busy after all, fails them all
    (IntegrityError, which `Store` translates).
    """
    if not drafts:
        return {}
    children = {one.view.topic_id: _reserved(one) for one in drafts}
    parameters = {
        "topic_ids": [one.view.topic_id for one in drafts],
        "row_versions": [one.view.row_version for one in drafts],
        "input_versions": [one.input_version for one in drafts],
        "reserved": [
            max((child.plan.segment_id + 1 for child in children[one.view.topic_id]), default=0)
            for one in drafts
        ],
        "kinds": [one.planned.kind.value for one in drafts],
        "request_keys": [one.request.request_key for one in drafts],
        "origins": [one.request.origin.value for one in drafts],
        "actors": [one.request.actor for one in drafts],
        "reasons": [one.request.reason for one in drafts],
        "decision_ids": [one.request.decision_id for one in drafts],
        "deadline_seconds": [one.request.deadline_seconds for one in drafts],
        "keep_seconds": [one.request.keep_seconds for one in drafts],
        "operation_parameters": [json.dumps(_parameters(one)) for one in drafts],
        "parents": [json.dumps(one.planned.parent_ids) for one in drafts],
        "children": [json.dumps(_documents(tx, one, children[one.view.topic_id])) for one in drafts],
    }
    written = {row.topic_id: row for row in WRITE.execute(tx, parameters)}
    return {
        one.view.topic_id: _operation(one, children[one.view.topic_id], written[one.view.topic_id])
        for one in drafts
        if one.view.topic_id in written
    }


def _reserved(draft: ReshapeDraft) -> tuple[ReservedChild, ...]:
    name = draft.backing_topic
    if name is None:
        return ()
    return tuple(
        ReservedChild(child, name(draft.view.name, segment_descriptor(child.hash_range, child.segment_id)))
        for child in draft.planned.children
    )


def _parameters(draft: ReshapeDraft) -> dict[str, object]:
    """What a broker is asked for: it chooses the ids, so the ranges say what its layout has to show."""
    if draft.backing_topic is not None:
        return {}
    children = draft.planned.children
    return {
        MIRRORED: True,
        "child_ranges": [str(child.hash_range) for child in children],
        "bucket_count": len(children[0].bucket_splits) + 1,
    }


def _documents(
    tx: Connection, draft: ReshapeDraft, children: Sequence[ReservedChild]
) -> list[dict[str, object]]:
    return [
        {
            "segment_id": child.plan.segment_id,
            "range_start": child.plan.hash_range.start,
            "range_end": child.plan.hash_range.end,
            "ordinal": ordinal,
            "bucket_splits": child.plan.bucket_splits,
            "merge_depth": _merge_depth(tx, draft, child.plan.hash_range),
            "backing_topic": child.backing_topic,
        }
        for ordinal, child in enumerate(children)
    ]


def _merge_depth(tx: Connection, draft: ReshapeDraft, hash_range: HashRange) -> int:
    """The depth to store, as `SegmentGraph.child_merge_depth` counts it. May take a statement of its own.

    Ancestors are counted only where they matter: where two parents or more descend from merges, which may be the same
    ones.
    """
    segments = (draft.view.layout.segment(i) for i in draft.planned.parent_ids)
    parents = [one for one in segments if one.hash_range.overlaps(hash_range)]
    stored = max(one.merge_depth for one in parents)
    if sum(one.merge_depth > 0 for one in parents) >= 2:
        of_parents = {
            "topic_id": draft.view.topic_id,
            "segment_ids": [one.segment_id for one in parents],
            "counted_merges": COUNTED_MERGES,
        }
        [(merges_above,)] = MERGES_ABOVE.execute(tx, of_parents)
        stored = max(stored, int(str(merges_above)))
    return stored + (len(parents) >= 2)


def _operation(draft: ReshapeDraft, children: tuple[ReservedChild, ...], row: Row[Any]) -> Operation:
    view, planned, request = draft.view, draft.planned, draft.request
    return Operation(
        operation_id=row.operation_id,
        topic_id=view.topic_id,
        topic_name=view.name,
        data_plane=view.data_plane,
        kind=OperationKind(planned.kind.value),
        state=OperationState.INTENDED,
        origin=request.origin,
        actor=request.actor,
        reason=request.reason,
        request_key=request.request_key,
        parent_ids=planned.parent_ids,
        parent_topics=tuple(view.backing_topics[segment_id] for segment_id in planned.parent_ids),
        children=children,
        parameters=_parameters(draft),
        deadline_at_ms=to_ms(row.deadline),
        token=row.token,
    )


def _first_of_key(tx: Connection, draft: ReshapeDraft) -> Intent | None:
    """Whoever came first with the same key, since the look, may be what stood in the way."""
    first = find_by_request_key(tx, draft.request.request_key)
    return None if first is None else _repeat(first, draft.view, draft.request)


def _repeat(first: Operation, view: TopicView, request: Request) -> Intent:
    return repeat(first, request, lambda one: one.topic_id == view.topic_id and one.kind.is_reshape)


def _views(
    statement: Prepared, tx: Connection, topics: Sequence[int | str], request_keys: Sequence[str | None]
) -> list[TopicView | None]:
    rows = statement.execute(tx, {"topics": list(topics), "request_keys": list(request_keys)})
    found = {row.ordinal: _view(row) for row in rows}
    return [found.get(ordinal) for ordinal in range(1, len(topics) + 1)]


def _view(row: Row[Any]) -> TopicView:
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
    return TopicView(
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
        why_not=row.why_not,
    )


@lru_cache(maxsize=64)
def _policy(document: str | None) -> AutoScalePolicy:
    return read_policy(document or "{}")
