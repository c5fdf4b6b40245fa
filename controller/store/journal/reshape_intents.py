"""Writes intents of reshapes, and reserves the ids of their children.

There are two statements, each for one topic or for many. `look` reads everything from one snapshot and takes no lock. `write`
compares the row version of the topic, which every intent and every commit raises, so that an outdated plan writes nothing. It
writes the operation, the parents and the children, all or none. The caller, a service, plans in between, and reads again after
a lost race. Topics are locked in the order of their ids.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row
from sqlalchemy.exc import IntegrityError

from controller.clock import to_ms
from controller.domain.errors import LostRace, TopicNotFound
from controller.domain.hash_range import HashRange
from controller.domain.layout import SegmentLayout
from controller.domain.operation import (
    CHILD_RANGES,
    MIRRORED,
    Operation,
    OperationKind,
    OperationState,
    ReservedChild,
)
from controller.domain.policy import AutoScalePolicy
from controller.domain.reshape import Reshape
from controller.domain.segment import Segment, segment_descriptor
from controller.domain.segment_graph import COUNTED_MERGES
from controller.store.journal import intent_checks
from controller.store.journal.operations import (
    BackingTopic,
    Request,
    find_by_request_key,
    get_operation,
)
from controller.store.journal.request_keys import Intent, repeat
from controller.store.postgres.prepared_statements import Prepared
from controller.store.topics.held_topics import MAY_ACT, WHY_NOT, demand_may_act
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
# All inserts depend on the row of the topic that passed the comparison, so all are written or none.
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
               (topic_id, kind, request_key, origin, actor, reason, decision_id, parameters, intended_at, deadline, kept_until)
        SELECT g.topic_id, g.kind, g.request_key, g.origin, g.actor, g.reason, g.decision_id, CAST(g.parameters AS jsonb),
               g.instant, g.instant + make_interval(secs => g.deadline_seconds), g.instant + make_interval(secs => g.keep_seconds)
          FROM (SELECT g.*, clock_timestamp() AS instant FROM topic JOIN given g USING (topic_id)) g ORDER BY g.topic_id
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
# Number of merges among the segments and their ancestors that are not pruned, which Pulsar uses as the depth of a child that joins
# them. Segments of one split need no count, because their stored depths suffice. The parents of each segment are looked up by key (a
# join would read all segments of the topic), and the search stops at the largest number of merges that is distinguished, so that the
# cost does not grow with the history of the topic.
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
    """State of a topic at one time. `layout` holds only the ACTIVE segments."""

    topic_id: int
    name: str
    state: TopicState
    data_plane: str
    row_version: int
    input_version: int | None
    """Version of the inputs of the topic's evaluation; None for a deleted topic."""
    layout: SegmentLayout
    cluster_policy: AutoScalePolicy
    """Policy of the cluster alone, not validated; an `UnreadablePolicy` if the stored document is not readable."""
    backing_topics: Mapping[int, str]
    """Logs of the ACTIVE segments, by segment id."""
    busy: Mapping[int, int]
    """Live operation of each busy segment, by segment id."""
    first_id: int | None
    """Id of the operation that has the request key; None if the key is unused or no key was given."""
    why_not: str | None = None
    """Reason for which nothing acts on the topic; None if the topic may be acted on."""

    def demand_current(self, *, epoch: int | None = None, input_version: int | None = None) -> None:
        """Raise TopicNotLive unless the topic is live, TopicHeld if nothing may act on it, or LostRace unless
        this state has the epoch and input version that the caller has read before. None accepts any value.
        Reads nothing from the database.
        """
        demand_live(self.name, self.state)
        demand_may_act(self.name, self.why_not)
        intent_checks.demand_unchanged(self.name, "epoch", self.layout.epoch, epoch)
        intent_checks.demand_unchanged(self.name, "input version", self.input_version, input_version)


@dataclass(frozen=True, slots=True)
class ReshapeDraft:
    """A planned reshape that `write` stores if the topic has not changed since `view`.

    `backing_topic` is None if a broker keeps the layout: the broker chooses ids and names, so none is reserved. `input_version` None
    accepts any version.
    """

    view: TopicView
    planned: Reshape
    request: Request
    backing_topic: BackingTopic | None
    input_version: int | None = None

    def demand_possible(self) -> None:
        """Raise SegmentNotFound if a parent is not ACTIVE, InvalidLayoutChange if the plan does not fit the layout otherwise, or
        SegmentBusy if a parent is in a live operation.
        """
        self.planned.validate_against(self.view.layout)
        intent_checks.demand_free(self.view.name, self.view.busy, self.planned.parent_ids)


def look(tx: Connection, topic: int | str, request_key: str | None = None) -> TopicView:
    """Return the present state of the topic that an intent needs, by topic id or name. A name refers to a topic that
    is not deleted; an id may refer to a deleted topic. Takes no lock.

    If `request_key` is given, `first_id` of the state is the id of the operation with this key, which may belong to
    another topic. Raises TopicNotFound.
    """
    [view] = (
        look_at_many(tx, [topic], [request_key])
        if isinstance(topic, int)
        else _views(LOOK_BY_NAME, tx, [topic], [request_key])
    )
    if view is None:
        raise TopicNotFound(
            f"topic {topic} does not exist; look up its id by name"
            if isinstance(topic, int)
            else f"topic {topic} does not exist; create it or check the name"
        )
    return view


def look_at_many(
    tx: Connection, topic_ids: Sequence[int], request_keys: Sequence[str | None]
) -> list[TopicView | None]:
    """Return the states of several topics, which may be deleted, in the order of `topic_ids`; None for a topic that
    does not exist. `request_keys` has, for each topic, the request key whose operation is looked up, or None. Takes no
    lock.
    """
    return _views(LOOK_BY_ID, tx, topic_ids, request_keys)


def first_intent(tx: Connection, view: TopicView) -> Intent | None:
    """Return the operation that the view found for the request key, as a repeated intent; None if the view found none. Raises Conflict
    unless the operation is a reshape of this topic.
    """
    first = None if view.first_id is None else get_operation(tx, view.first_id)
    return None if first is None else _repeat(first, view)


def intend(tx: Connection, draft: ReshapeDraft) -> Intent:
    """Write the intent of one draft, and return the operation with `repeated` False. If the request key was used for
    a reshape of this topic since `draft.view` was read, return that operation with `repeated` True, and write
    nothing.

    The write is in a nested transaction, so `tx` remains usable after every error. Raises SegmentNotFound if a parent
    is not ACTIVE; InvalidLayoutChange if the plan does not fit the layout otherwise; SegmentBusy if a parent is in a
    live operation in `draft.view`; IntegrityError if another transaction has used a parent in an operation since
    then; and Conflict if the key was used for another topic or kind of operation. Raises LostRace if the topic row or
    the input version has changed, if the topic is not live, or if the topic is held or not verified.
    """
    draft.demand_possible()
    try:
        with tx.begin_nested():
            written = write(tx, [draft]).get(draft.view.topic_id)
        if written is None:
            raise LostRace(f"topic {draft.view.name} changed meanwhile; read it again", 0.0, what="intent")
    except (IntegrityError, LostRace):
        first = _first_of_key(tx, draft)
        if first is None:
            raise
        return first
    return Intent(written, repeated=False)


def write(tx: Connection, drafts: Sequence[ReshapeDraft]) -> dict[int, Operation]:
    """Write the intents of the drafts in one statement, reserve the ids of the children, raise the row version of
    each topic, and return the operations by topic id. Waits for locked topic rows. `drafts` has at most one draft per
    topic, and the caller has called `demand_possible` for each draft.

    Nothing is written for a topic, and the topic is absent from the result, if the topic row has changed since
    `view`, if the input version of the topic's evaluation is not that of the draft, if the topic is not live, or if
    the topic is held or not verified. If a request key is in use or a parent is in a live operation, no intent is
    written, and IntegrityError is raised, which `Store.transaction` translates.
    """
    if not drafts:
        return {}
    children = {draft.view.topic_id: _reserved(draft) for draft in drafts}
    parameters = {
        "topic_ids": [draft.view.topic_id for draft in drafts],
        "row_versions": [draft.view.row_version for draft in drafts],
        "input_versions": [draft.input_version for draft in drafts],
        "reserved": [
            max((child.plan.segment_id + 1 for child in children[draft.view.topic_id]), default=0)
            for draft in drafts
        ],
        "kinds": [draft.planned.kind.value for draft in drafts],
        "request_keys": [draft.request.request_key for draft in drafts],
        "origins": [draft.request.origin.value for draft in drafts],
        "actors": [draft.request.actor for draft in drafts],
        "reasons": [draft.request.reason for draft in drafts],
        "decision_ids": [draft.request.decision_id for draft in drafts],
        "deadline_seconds": [draft.request.deadline_seconds for draft in drafts],
        "keep_seconds": [draft.request.keep_seconds for draft in drafts],
        "operation_parameters": [json.dumps(_parameters(draft)) for draft in drafts],
        "parents": [json.dumps(draft.planned.parent_ids) for draft in drafts],
        "children": [json.dumps(_documents(tx, draft, children[draft.view.topic_id])) for draft in drafts],
    }
    written = {row.topic_id: row for row in WRITE.execute(tx, parameters)}
    return {
        draft.view.topic_id: _operation(draft, children[draft.view.topic_id], written[draft.view.topic_id])
        for draft in drafts
        if draft.view.topic_id in written
    }


def _reserved(draft: ReshapeDraft) -> tuple[ReservedChild, ...]:
    """Return the children of the plan with the names of their logs; empty if a broker keeps the layout."""
    name = draft.backing_topic
    if name is None:
        return ()
    return tuple(
        ReservedChild(child, name(draft.view.name, segment_descriptor(child.hash_range, child.segment_id)))
        for child in draft.planned.children
    )


def _parameters(draft: ReshapeDraft) -> dict[str, object]:
    """Return the parameters of a reshape that a broker performs: `MIRRORED`, `CHILD_RANGES` (in the order of the plan; the ranges
    identify the children because the broker chooses the ids) and `bucket_count` (entry buckets of the first child). Empty for a
    layout that Cleave keeps.
    """
    if draft.backing_topic is not None:
        return {}
    children = draft.planned.children
    return {
        MIRRORED: True,
        CHILD_RANGES: [str(child.hash_range) for child in children],
        "bucket_count": len(children[0].bucket_splits) + 1,
    }


def _documents(
    tx: Connection, draft: ReshapeDraft, children: Sequence[ReservedChild]
) -> list[dict[str, object]]:
    """Return the reserved children as JSON values, each with the merge depth to store."""
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
    """Return the merge depth to store for a child with this range, as `SegmentGraph.child_merge_depth` counts it: the
    merge depth of the child's deepest parent, plus 1 if the child has two or more parents. The parents of the child
    are the segments of the plan that overlap `hash_range`.

    If two or more of these parents have a merge depth above 0, the different merges among the parents and their
    ancestors are counted, up to `COUNTED_MERGES`. If this count is larger than the depth of the deepest parent, the
    count takes the place of that depth. The count is 0 if all parents are children of one segment. A merge counts
    only while at least two of its parents are not pruned.
    """
    segments = (draft.view.layout.segment(i) for i in draft.planned.parent_ids)
    parents = [parent for parent in segments if parent.hash_range.overlaps(hash_range)]
    stored = max(parent.merge_depth for parent in parents)
    if sum(parent.merge_depth > 0 for parent in parents) >= 2:
        of_parents = {
            "topic_id": draft.view.topic_id,
            "segment_ids": [parent.segment_id for parent in parents],
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
    """Return the operation of the request key, which a concurrent request may have written, as a repeated intent; None if there is none.
    Raises Conflict unless the operation is a reshape of this topic.
    """
    first = find_by_request_key(tx, draft.request.request_key)
    return None if first is None else _repeat(first, draft.view)


def _repeat(first: Operation, view: TopicView) -> Intent:
    """Return the first operation of the request key. Raises Conflict unless the operation is a reshape of this topic."""
    return repeat(first, lambda operation: operation.topic_id == view.topic_id and operation.kind.is_reshape)


def _views(
    statement: Prepared, tx: Connection, topics: Sequence[int | str], request_keys: Sequence[str | None]
) -> list[TopicView | None]:
    """Execute `statement`, which is `LOOK_BY_ID` for topic ids or `LOOK_BY_NAME` for names, and return the states of
    the topics in the order of `topics`; None for a topic that does not exist. `request_keys` has a key or None for
    each topic.
    """
    rows = statement.execute(tx, {"topics": list(topics), "request_keys": list(request_keys)})
    views = {row.ordinal: _view(row) for row in rows}
    return [views.get(ordinal) for ordinal in range(1, len(topics) + 1)]


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
        cluster_policy=read_policy(row.cluster_policy or "{}"),
        backing_topics={segment[0]: segment[-1] for segment in segments},
        busy=dict(row.busy or ()),
        first_id=row.first_id,
        why_not=row.why_not,
    )
