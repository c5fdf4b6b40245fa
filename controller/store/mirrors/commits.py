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
from controller.store.journal import claims as operations
from controller.store.journal.common_commits import (
    ABORT_PAUSE_SECONDS,
    demand_alone,
    end_segments,
    end_topic,
    pause_decisions,
    write_history,
)
from controller.store.mirrors.mirroring import adopt_layout, follow_layout
from controller.store.topics import topics
from controller.store.topics.topics import TopicRow, TopicState

_EPOCH_OF = (
    "SELECT epoch FROM cleave.layout_change WHERE topic_id = :topic_id AND operation_id = :operation_id"
)


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
        end_topic(tx, topic, topic.epoch, topics.database_now(tx))
    else:
        pause_decisions(tx, topic.topic_id, ABORT_PAUSE_SECONDS)
    return aborted


def _attach(tx: Connection, topic: TopicRow, operation: Operation, layout: SegmentLayout) -> int:
    if topic.state is not TopicState.CREATING:
        raise LostRace(f"topic {topic.name} is {topic.state} by now; look again", 0.0)
    adopt_layout(tx, topic, layout, operation)
    return layout.epoch


def _reshape(tx: Connection, topic: TopicRow, operation: Operation, layout: SegmentLayout) -> int:
    """The mirror, or another operation's commit, may have been here first: then the history has our row already."""
    of_operation = {"topic_id": topic.topic_id, "operation_id": operation.operation_id}
    epoch = tx.execute(text(_EPOCH_OF), of_operation).scalar_one_or_none()
    if layout.epoch > topic.epoch or epoch is None:  # else somebody has written a later look than ours
        follow_layout(tx, topic, layout)
        epoch = tx.execute(text(_EPOCH_OF), of_operation).scalar_one_or_none()
    if epoch is None:
        raise InvariantViolated(
            f"operation {operation.operation_id} of {topic.name} is done on the broker, but no epoch up to "
            f"{layout.epoch} is its own"
        )
    return int(epoch)


def _leave(tx: Connection, topic: TopicRow, operation: Operation) -> int:
    demand_alone(tx, topic, operation)
    epoch = topic.epoch + 1
    at = write_history(tx, topic, operation, epoch)
    end_segments(tx, topic.topic_id, epoch, at)
    end_topic(tx, topic, epoch, at)
    return epoch
