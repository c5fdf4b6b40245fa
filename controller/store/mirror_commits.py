"""The commits of operations on topics whose layout a broker keeps: what was read of it becomes true here.

The counterpart of `commits` for `on_broker` operations, under the same locks: the topic row first, then the
operation by its claim term. Logs are the broker's, so nothing is queued for deletion.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, text

from controller.domain.errors import InvariantViolated, LostRace
from controller.domain.layout import SegmentLayout
from controller.domain.operation import Operation, OperationKind, OperationState, Step
from controller.store import operations, topics
from controller.store.commits import ABORT_PAUSE_SECONDS
from controller.store.mirroring import adopt_layout, follow_layout
from controller.store.topics import TopicRow, TopicState

_EPOCH_OF = (
    "SELECT epoch FROM cleave.layout_change WHERE topic_id = :topic_id AND operation_id = :operation_id"
)
_NOTE_EPOCH = "UPDATE cleave.operation SET epoch = :epoch WHERE operation_id = :operation_id"
_OTHERS_LIVE = """
    SELECT count(*) FROM cleave.operation
     WHERE topic_id = :topic_id AND operation_id <> :operation_id AND state NOT IN ('done', 'aborted')
"""
_END_ALL = """
    UPDATE cleave.segment
       SET state = 'SEALED', sealed_epoch = coalesce(sealed_epoch, :epoch), sealed_at = coalesce(sealed_at, clock_timestamp()),
           pruned_epoch = :epoch, pruned_at = clock_timestamp()
     WHERE topic_id = :topic_id AND pruned_epoch IS NULL
"""
_LEFT = """
    INSERT INTO cleave.layout_change (topic_id, epoch, kind, operation_id, origin, actor, reason)
    VALUES (:topic_id, :epoch, :kind, :operation_id, :origin, :actor, :reason)
"""
_FORGET = tuple(
    f"DELETE FROM cleave.{table} WHERE topic_id = :topic_id"  # noqa: S608 - our own names
    for table in ("mirror", "segment_load", "subscription", "evaluation")
)
_PAUSE = """
    UPDATE cleave.evaluation
       SET not_before = greatest(not_before, clock_timestamp() + make_interval(secs => :seconds))
     WHERE topic_id = :topic_id
"""


def commit(
    tx: Connection, operation: Operation, runner: str, *, started_at: datetime, detail: Mapping[str, Any]
) -> Operation:
    """Makes what the broker did true here; returns the operation in state committed.

    `detail` holds the `layout` as it was read (leaving a topic needs none). Raises FencedOut when the claim is lost,
    LostRace when the runner has to look again.
    """
    topic = topics.get_topic(tx, operation.topic_id, lock=True)
    committed, _ = operations.record_step(
        tx, operation, runner, Step.COMMIT, OperationState.COMMITTED, started_at=started_at
    )
    if operation.kind in (OperationKind.DETACH, OperationKind.DELETE):
        epoch = _leave(tx, topic, operation)
    else:
        layout = SegmentLayout.from_metadata(detail["layout"])
        epoch = (_attach if operation.kind is OperationKind.ATTACH else _reshape)(
            tx, topic, operation, layout
        )
    return replace(committed, epoch=epoch)


def abort(tx: Connection, operation: Operation, runner: str, *, started_at: datetime) -> Operation:
    """Ends an operation the broker has not done; a topic that was to be attached is forgotten."""
    topic = topics.get_topic(tx, operation.topic_id, lock=True)
    aborted, _ = operations.record_step(
        tx, operation, runner, Step.FINISH_ABORT, OperationState.ABORTED, started_at=started_at
    )
    if operation.kind is OperationKind.ATTACH and topic.state is TopicState.CREATING:
        _end(tx, topic, topic.epoch)
    else:
        tx.execute(text(_PAUSE), {"topic_id": topic.topic_id, "seconds": ABORT_PAUSE_SECONDS})
    return aborted


def _attach(tx: Connection, topic: TopicRow, operation: Operation, layout: SegmentLayout) -> int:
    if topic.state is not TopicState.CREATING:
        raise LostRace(f"topic {topic.name} is {topic.state} by now; look again", 0.0)
    adopt_layout(tx, topic, layout, _by(operation))
    return _noted(tx, operation, layout.epoch)


def _reshape(tx: Connection, topic: TopicRow, operation: Operation, layout: SegmentLayout) -> int:
    """The mirror may have been here first: then the history has our row already."""
    follow_layout(tx, topic, layout)
    of_operation = {"topic_id": topic.topic_id, "operation_id": operation.operation_id}
    epoch = tx.execute(text(_EPOCH_OF), of_operation).scalar_one_or_none()
    if epoch is None:
        raise InvariantViolated(
            f"operation {operation.operation_id} of {topic.name} is done on the broker, but no epoch up to "
            f"{layout.epoch} is its own"
        )
    return int(epoch)


def _leave(tx: Connection, topic: TopicRow, operation: Operation) -> int:
    of_topic = {"topic_id": topic.topic_id, "operation_id": operation.operation_id}
    others = tx.execute(text(_OTHERS_LIVE), of_topic).scalar_one()
    if others:
        raise LostRace(f"{others} older operation(s) of topic {topic.name} still live; wait for them", 0.1)
    epoch = topic.epoch + 1
    tx.execute(text(_END_ALL), {"topic_id": topic.topic_id, "epoch": epoch})
    tx.execute(
        text(_LEFT),
        {"topic_id": topic.topic_id, "epoch": epoch, "kind": operation.kind.value, **_by(operation)},
    )
    _end(tx, topic, epoch)
    return _noted(tx, operation, epoch)


def _end(tx: Connection, topic: TopicRow, epoch: int) -> None:
    at = topics.database_now(tx)
    topics.update_topic(tx, topic, state=TopicState.DELETED.value, epoch=epoch, deleted_at=at)
    for statement in _FORGET:
        tx.execute(text(statement), {"topic_id": topic.topic_id})


def _noted(tx: Connection, operation: Operation, epoch: int) -> int:
    tx.execute(text(_NOTE_EPOCH), {"operation_id": operation.operation_id, "epoch": epoch})
    return epoch


def _by(operation: Operation) -> dict[str, object]:
    return {
        "operation_id": operation.operation_id,
        "origin": operation.origin.value,
        "actor": operation.actor,
        "reason": operation.reason,
    }
