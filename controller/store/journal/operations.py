"""Reads and writes operations in the journal, each with its parents and reserved children.

An operation is stored in three tables. Intents decide what is written, and `steps` and `commits` change the state. Reshapes
are written by `reshape_intents`, many in one statement.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Row, insert, text

from controller.clock import to_ms
from controller.domain.errors import OperationNotFound, Unsupported
from controller.domain.hash_range import HashRange
from controller.domain.operation import Operation, OperationKind, OperationState, Origin, ReservedChild
from controller.domain.reshape import ChildPlan
from controller.domain.segment import segment_descriptor
from controller.store.postgres.tables import OPERATION_CHILD, OPERATION_PARENT
from controller.store.topics.topics import TopicRow

BackingTopic = Callable[[str, str], str]
"""Function that returns the data plane's name of a log, from the name of the topic and the segment descriptor (`0000-7fff-12`)."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request for an operation: key, origin, actor and reason. A creation, adoption, attachment or reshape that has neither fenced its
    range nor been committed within `deadline_seconds` of the intent is aborted; the deadline alone does not end other kinds
    (`domain.next_step`). `decision_id` is the decision that chose the operation. `keep_seconds` is for splits only: for this time
    no policy joins the created segments with others; None allows this at once.
    """

    request_key: str
    origin: Origin
    actor: str
    reason: str
    deadline_seconds: float = 60.0
    decision_id: int | None = None
    keep_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class NewOperation:
    """Contents of an intent. Ids and ranges are stored here once and never computed again."""

    kind: OperationKind
    parent_ids: Sequence[int] = ()
    children: Sequence[ChildPlan] = ()
    parameters: Mapping[str, object] = field(default_factory=dict)


READ_COLUMNS = """o.operation_id, o.topic_id, t.name AS topic_name, t.data_plane, o.kind, o.state, o.origin, o.actor,
           o.reason, o.request_key, o.parameters, o.subscription_version, o.claim_term, o.attempts, o.last_error, o.epoch, o.deadline,
           CAST(o.token AS text) AS token,
           ARRAY(SELECT p.segment_id FROM cleave.operation_parent p
                  WHERE p.operation_id = o.operation_id ORDER BY p.ordinal) AS parent_ids,
           ARRAY(SELECT s.backing_topic FROM cleave.operation_parent p JOIN cleave.segment s USING (topic_id, segment_id)
                  WHERE p.operation_id = o.operation_id ORDER BY p.ordinal) AS parent_topics,
           (SELECT coalesce(jsonb_agg(jsonb_build_array(c.segment_id, c.range_start, c.range_end, c.bucket_splits,
                                                        c.backing_topic) ORDER BY c.ordinal), '[]')
              FROM cleave.operation_child c WHERE c.operation_id = o.operation_id) AS children"""
READ_FROM = f"SELECT {READ_COLUMNS} FROM {{source}} o JOIN cleave.topic t USING (topic_id)"
"""Query of whole operations, from the table or from a statement that has just changed them."""
_READ = READ_FROM.format(source="cleave.operation")
_BY_IDS = _READ + " WHERE o.operation_id = ANY (:ids) ORDER BY o.operation_id"
_BY_KEY = _READ + " WHERE o.request_key = :request_key"

_NEW_OPERATION = """
    INSERT INTO cleave.operation
           (topic_id, kind, request_key, origin, actor, reason, decision_id, parameters, deadline)
    VALUES (:topic_id, :kind, :request_key, :origin, :actor, :reason, :decision_id, CAST(:parameters AS jsonb),
            clock_timestamp() + make_interval(secs => :deadline_seconds))
 RETURNING operation_id
"""


_KNOWN_KINDS = frozenset(kind.value for kind in OperationKind)


def get_operation(tx: Connection, operation_id: int) -> Operation:
    """Return the operation with its parents and reserved children. Raises OperationNotFound, and Unsupported for a kind that a newer
    version wrote.
    """
    operations = read_operations(tx, [operation_id])
    if not operations:
        raise OperationNotFound(
            f"operation {operation_id} is not in the journal; list the operations of the topic"
        )
    return operations[0]


def find_by_request_key(tx: Connection, request_key: str) -> Operation | None:
    """Return the operation that has the request key; None if the key is unused. Raises Unsupported for a kind that a newer version
    wrote.
    """
    row = tx.execute(text(_BY_KEY), {"request_key": request_key}).one_or_none()
    return None if row is None else operation_of(row)


def read_operations(tx: Connection, operation_ids: Collection[int]) -> list[Operation]:
    """Return these operations in the order of their ids. Ids that are not in the journal are absent. Raises Unsupported for a kind
    that a newer version wrote.
    """
    if not operation_ids:
        return []
    return [operation_of(row) for row in tx.execute(text(_BY_IDS), {"ids": list(operation_ids)})]


def operation_of(row: Row[Any]) -> Operation:
    """Return the operation of a row of `READ_FROM`. Raises Unsupported for a kind that a newer version wrote."""
    if row.kind not in _KNOWN_KINDS:
        raise Unsupported(
            f"operation {row.operation_id} has kind {row.kind}, which a newer version wrote; upgrade this program"
        )
    return Operation(
        operation_id=row.operation_id,
        topic_id=row.topic_id,
        topic_name=row.topic_name,
        data_plane=row.data_plane,
        kind=OperationKind(row.kind),
        state=OperationState(row.state),
        origin=Origin(row.origin),
        actor=row.actor,
        reason=row.reason,
        request_key=row.request_key,
        parent_ids=tuple(row.parent_ids),
        parent_topics=tuple(row.parent_topics),
        children=tuple(
            ReservedChild(ChildPlan(segment_id, HashRange(start, end), tuple(splits)), backing_topic)
            for segment_id, start, end, splits, backing_topic in row.children
        ),
        parameters=row.parameters,
        subscription_version=row.subscription_version,
        claim_term=row.claim_term,
        attempts=row.attempts,
        last_error=row.last_error,
        deadline_at_ms=to_ms(row.deadline),
        epoch=row.epoch,
        token=row.token,
    )


def write_operation(
    tx: Connection,
    topic: TopicRow,
    new: NewOperation,
    request: Request,
    backing_topic: BackingTopic | None = None,
) -> Operation:
    """Insert an operation in state intended, with its parents and reserved children, and return the operation as
    stored. The deadline is the request's `deadline_seconds` from now. The request's `keep_seconds` is ignored.

    `backing_topic` names the logs of the children. If `backing_topic` is None, no children are written. The topic row
    is not changed, so the caller reserves the ids of the children. Raises IntegrityError if the request key is used
    or a parent is in a live operation; `request_keys.once` catches this error, and `Store.transaction` translates the
    error.
    """
    parameters = {
        "topic_id": topic.topic_id,
        "kind": new.kind.value,
        "request_key": request.request_key,
        "origin": request.origin.value,
        "actor": request.actor,
        "reason": request.reason,
        "decision_id": request.decision_id,
        "parameters": json.dumps(dict(new.parameters)),
        "deadline_seconds": request.deadline_seconds,
    }
    operation_id = tx.execute(text(_NEW_OPERATION), parameters).scalar_one()
    owner = {"operation_id": operation_id, "topic_id": topic.topic_id}
    if new.parent_ids:
        tx.execute(
            insert(OPERATION_PARENT),
            [{**owner, "segment_id": i, "ordinal": n} for n, i in enumerate(new.parent_ids)],
        )
    if new.children and backing_topic is not None:
        tx.execute(
            insert(OPERATION_CHILD),
            [
                {
                    **owner,
                    "segment_id": child.segment_id,
                    "range_start": child.hash_range.start,
                    "range_end": child.hash_range.end,
                    "ordinal": ordinal,
                    "bucket_splits": list(child.bucket_splits),
                    "backing_topic": backing_topic(
                        topic.name, segment_descriptor(child.hash_range, child.segment_id)
                    ),
                }
                for ordinal, child in enumerate(new.children)
            ],
        )
    return get_operation(tx, operation_id)
