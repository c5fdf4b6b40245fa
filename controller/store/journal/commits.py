"""Commits: the one transaction in which an operation becomes true.

Each locks the topic row first and the operation second, by claim term; then parents are sealed, children
become active, the epoch rises by one and history gets its row, all or nothing. It never loses what happened
meanwhile: if the subscriptions are not those the children were given, or an older operation of a topic being
deleted still lives, it raises LostRace and the runner looks again. Logs are not touched here; those that
became superfluous are queued in ``tombstones``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime

from sqlalchemy import Connection, DateTime, column, func, text

from controller.clock import to_ms
from controller.domain.errors import InvariantViolated, LostRace
from controller.domain.operation import Operation, OperationKind, OperationState, Step
from controller.domain.segment import Segment
from controller.store.journal import adoptions, tombstones
from controller.store.journal import claims as operations
from controller.store.journal.common_commits import (
    ABORT_PAUSE_SECONDS,
    demand_alone,
    end_segments,
    end_topic,
    pause_decisions,
    write_history,
)
from controller.store.postgres.tables import TOPIC
from controller.store.topics import drains, layouts, topics
from controller.store.topics.topics import TopicRow, TopicState

_SEAL = """
    UPDATE cleave.segment s
       SET state = 'SEALED', sealed_epoch = :epoch, sealed_at = :at,
           terminated_position = (
               SELECT j.detail -> 'positions' ->> s.backing_topic FROM cleave.operation_step j
                WHERE j.operation_id = :operation_id AND j.detail -> 'positions' ? s.backing_topic
                ORDER BY j.sequence DESC LIMIT 1)
     WHERE topic_id = :topic_id AND segment_id = ANY (:segment_ids) AND state = 'ACTIVE'
"""
_PRUNE = """
    UPDATE cleave.segment SET pruned_epoch = :epoch, pruned_at = :at
     WHERE topic_id = :topic_id AND segment_id = ANY (:segment_ids) AND state = 'SEALED' AND pruned_epoch IS NULL
 RETURNING segment_id, backing_topic
"""
STAMPS: Mapping[OperationKind, tuple[str, ...]] = {
    OperationKind.SPLIT: ("last_split_at",),
    OperationKind.MERGE: ("last_merge_at",),
    OperationKind.REBUCKET: ("last_rebucket_at",),
    OperationKind.RECUT: ("last_split_at", "last_merge_at"),
}
_INTENDED_AT = text("SELECT intended_at FROM cleave.operation WHERE operation_id = :operation_id").columns(
    column("intended_at", DateTime(timezone=True))
)
_HAS_HISTORY = "SELECT EXISTS (SELECT FROM cleave.layout_change WHERE topic_id = :topic_id)"
_FORGET_LOADS = (
    "DELETE FROM cleave.segment_load WHERE topic_id = :topic_id AND segment_id = ANY (:segment_ids)"
)
_FORGET_SUBSCRIPTION = (
    "DELETE FROM cleave.subscription WHERE topic_id = :topic_id AND name = :name AND state = 'deleting'"
)


def commit(tx: Connection, operation: Operation, runner: str, *, started_at: datetime) -> Operation:
    """Makes the operation true; returns it in state committed.

    ``started_at``: when the runner began the step. Raises FencedOut when the claim is lost, LostRace when the
    runner has to look again, InvariantViolated when a law of the layout would break. All leave no trace.
    """
    topic = topics.get_topic(tx, operation.topic_id, lock=True)
    act = _reshape if operation.kind.is_reshape else _ACTS[operation.kind]
    adopts = operation.kind is OperationKind.ADOPT
    epoch = adoptions.FIRST_EPOCH if adopts else _next_epoch(tx, topic)
    # The claim comes first: a stale runner learns that it is stale, whatever else may have changed.
    committed, _ = operations.record_step(
        tx, operation, runner, Step.COMMIT, OperationState.COMMITTED, started_at=started_at
    )
    has_epoch = act(tx, topic, operation, epoch)
    return replace(committed, epoch=epoch) if has_epoch else committed


def abort(
    tx: Connection,
    operation: Operation,
    runner: str,
    *,
    started_at: datetime,
    pause_seconds: float = ABORT_PAUSE_SECONDS,
) -> Operation:
    """Ends an operation that is aborting: its reserved children are queued for deletion, its parents free again.

    A topic whose creation ends here is deleted, and its name free. Automatic decisions on the topic pause for
    ``pause_seconds``. Raises FencedOut when the claim is lost.
    """
    topic = topics.get_topic(tx, operation.topic_id, lock=True)
    aborted, _ = operations.record_step(
        tx, operation, runner, Step.FINISH_ABORT, OperationState.ABORTED, started_at=started_at
    )
    logs = {child.plan.segment_id: child.backing_topic for child in operation.children}
    _bury(tx, topic, operation, logs, f"{operation.kind} was aborted")
    if topic.state is TopicState.CREATING:
        end_topic(tx, topic, topic.epoch, topics.database_now(tx))
    else:
        pause_decisions(tx, topic.topic_id, pause_seconds)
    return aborted


def _create(tx: Connection, topic: TopicRow, operation: Operation, epoch: int) -> bool:
    if topic.state is not TopicState.CREATING:
        raise LostRace(f"topic {topic.name} is {topic.state} by now; look again", 0.0)
    _demand_noted(topic, operation)
    at = write_history(tx, topic, operation, epoch)
    now = to_ms(at)
    segments = (
        Segment(c.plan.segment_id, c.plan.hash_range, bucket_splits=c.plan.bucket_splits, created_at_ms=now)
        for c in operation.children
    )
    layouts.insert_segments(tx, topic.topic_id, segments, _backing_topics(operation), at)
    topics.update_topic(tx, topic, state=TopicState.LIVE.value, epoch=epoch)
    return True


def _adopt(tx: Connection, topic: TopicRow, operation: Operation, epoch: int) -> bool:
    """Two epochs: the topic as it was found, and the segments that follow it. The old logs are closed already."""
    if topic.state not in (TopicState.CREATING, TopicState.DELETING):
        raise InvariantViolated(f"topic {topic.name} is {topic.state} under its adoption")
    _demand_noted(topic, operation)
    write_history(tx, topic, operation, adoptions.FOUND_EPOCH)
    at = write_history(tx, topic, operation, epoch)
    adoptions.insert_generations(tx, topic, operation, at)
    state = TopicState.LIVE if topic.state is TopicState.CREATING else topic.state
    topics.update_topic(tx, topic, state=state.value, epoch=epoch)
    return True


def _reshape(tx: Connection, topic: TopicRow, operation: Operation, epoch: int) -> bool:
    if topic.state not in (TopicState.LIVE, TopicState.DELETING):
        raise InvariantViolated(
            f"topic {topic.name} is {topic.state} under {operation.kind} {operation.operation_id}"
        )
    _demand_noted(topic, operation)
    before = layouts.load_layout(tx, topic.topic_id)
    at = write_history(tx, topic, operation, epoch)
    plans = [child.plan for child in operation.children]
    after = before.reshape(operation.parent_ids, plans, to_ms(at))
    seal = {
        "topic_id": topic.topic_id,
        "segment_ids": list(operation.parent_ids),
        "operation_id": operation.operation_id,
        "epoch": epoch,
        "at": at,
    }
    if tx.execute(text(_SEAL), seal).rowcount != len(operation.parent_ids):
        raise InvariantViolated(
            f"parents {operation.parent_ids} of operation {operation.operation_id} are not all active"
        )
    children = [after.segment(plan.segment_id) for plan in plans]
    layouts.insert_segments(tx, topic.topic_id, children, _backing_topics(operation), at)
    intended_at = _INTENDED_AT.bindparams(operation_id=operation.operation_id).scalar_subquery()
    stamps = {
        column: func.greatest(intended_at, TOPIC.c[column]) for column in STAMPS.get(operation.kind, ())
    }
    topics.update_topic(tx, topic, epoch=epoch, **stamps)
    return True


def _delete(tx: Connection, topic: TopicRow, operation: Operation, epoch: int) -> bool:
    demand_alone(tx, topic, operation)
    at = write_history(tx, topic, operation, epoch)
    _bury(tx, topic, operation, end_segments(tx, topic.topic_id, epoch, at), "the topic was deleted")
    end_topic(tx, topic, epoch, at)
    return True


def _prune(tx: Connection, topic: TopicRow, operation: Operation, epoch: int) -> bool:
    """What a seek has un-drained since the intent stays; with nothing left the layout stays as it is."""
    waiting = drains.undrained_by_anybody(tx, topic.topic_id, operation.parent_ids)
    ready = [i for i in operation.parent_ids if i not in waiting]
    if not ready:
        return False
    at = write_history(tx, topic, operation, epoch)
    of_segments = {"topic_id": topic.topic_id, "segment_ids": ready}
    logs = {
        row.segment_id: row.backing_topic
        for row in tx.execute(text(_PRUNE), of_segments | {"epoch": epoch, "at": at})
    }
    if len(logs) != len(ready):
        raise InvariantViolated(f"segments {ready} of topic {topic.name} are not all sealed and unpruned")
    _bury(tx, topic, operation, logs, "the segment was pruned")
    tx.execute(text(_FORGET_LOADS), of_segments)
    topics.update_topic(tx, topic, epoch=epoch)
    return True


def _subscription_delete(tx: Connection, topic: TopicRow, operation: Operation, _epoch: int) -> bool:
    """Raises the version once more: a reshape that copied cursors before they were gone looks again."""
    name = operation.parameters["subscription"]
    tx.execute(text(_FORGET_SUBSCRIPTION), {"topic_id": topic.topic_id, "name": name})
    topics.update_topic(tx, topic, subscription_version=topic.subscription_version + 1)
    return False


_ACTS: Mapping[OperationKind, Callable[[Connection, TopicRow, Operation, int], bool]] = {
    OperationKind.ADOPT: _adopt,
    OperationKind.CREATE: _create,
    OperationKind.DELETE: _delete,
    OperationKind.PRUNE: _prune,
    OperationKind.SUBSCRIPTION_DELETE: _subscription_delete,
}
"""Each returns whether it made an epoch."""


def _next_epoch(tx: Connection, topic: TopicRow) -> int:
    """The first epoch is 0; a topic deleted before it had a layout ends at 0 too."""
    if topic.epoch > 0:
        return topic.epoch + 1
    return topic.epoch + 1 if tx.execute(text(_HAS_HISTORY), {"topic_id": topic.topic_id}).scalar_one() else 0


def _demand_noted(topic: TopicRow, operation: Operation) -> None:
    if operation.subscription_version != topic.subscription_version:
        raise LostRace(
            f"subscriptions of topic {topic.name} are at version {topic.subscription_version}, the children at "
            f"{operation.subscription_version}; apply the difference first",
            delay_seconds=0.0,
        )


def _bury(
    tx: Connection, topic: TopicRow, operation: Operation, logs: Mapping[int, str], reason: str
) -> None:
    tombstones.add(
        tx,
        data_plane=topic.data_plane,
        topic_id=topic.topic_id,
        backing_topics=logs,
        reason=reason,
        operation_id=operation.operation_id,
    )


def _backing_topics(operation: Operation) -> dict[int, str]:
    return {child.plan.segment_id: child.backing_topic for child in operation.children}
