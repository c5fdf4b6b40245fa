"""Writes the layout that was read from a broker into the tables of layouts.

The caller holds the lock of the topic row. Each epoch whose change can be determined gets a row of history: a change that an
operation requested has that operation, any other change has the kind `mirrored`. Epochs without a known change get one `mirrored`
row for the gap. This module does not call the broker.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any

from sqlalchemy import Connection, Row, text

from controller.clock import to_datetime
from controller.domain.decision import is_for_consumers
from controller.domain.layout import SegmentLayout
from controller.domain.mirrored_changes import LayoutStep, last_reshape_times, steps_between
from controller.domain.operation import Operation
from controller.domain.reshape import ReshapeKind
from controller.domain.segment import backing_topic_name
from controller.store.load.load_deletion import forget_counts, forget_rates
from controller.store.topics import layouts, topics
from controller.store.topics.topics import TopicRow

_CHANGE = """
    WITH noted AS (UPDATE cleave.operation SET epoch = :epoch WHERE operation_id = :operation_id)
    INSERT INTO cleave.layout_change (topic_id, epoch, kind, operation_id, origin, actor, reason, mirrored_from)
    VALUES (:topic_id, :epoch, :kind, :operation_id, :origin, :actor, :reason, :mirrored_from)
"""
_SEAL = """
    UPDATE cleave.segment SET state = 'SEALED', sealed_epoch = :epoch, sealed_at = :at
     WHERE topic_id = :topic_id AND segment_id = :segment_id AND state = 'ACTIVE'
"""
_PRUNE = """
    UPDATE cleave.segment
       SET state = 'SEALED', sealed_epoch = coalesce(sealed_epoch, :epoch), sealed_at = coalesce(sealed_at, clock_timestamp()),
           pruned_epoch = :epoch, pruned_at = clock_timestamp()
     WHERE topic_id = :topic_id AND segment_id = ANY (:segment_ids)
"""
_KNOWN = "SELECT segment_id FROM cleave.segment WHERE topic_id = :topic_id"
_REQUESTED = """
    SELECT o.operation_id, o.kind, o.origin, o.actor, o.reason, o.state, o.intended_at, array_agg(p.segment_id) AS parent_ids
      FROM cleave.operation o JOIN cleave.operation_parent p USING (operation_id)
     WHERE o.topic_id = :topic_id AND o.epoch IS NULL AND p.segment_id = ANY (:segment_ids)
     GROUP BY o.operation_id ORDER BY o.operation_id
"""
_STAMPS: Mapping[ReshapeKind, str] = {
    ReshapeKind.SPLIT: "last_split_at",
    ReshapeKind.MERGE: "last_merge_at",
    ReshapeKind.REBUCKET: "last_rebucket_at",
}
FOREIGN = {"operation_id": None, "origin": "broker", "actor": "pulsar"}
"""Columns of a change that no operation requested: the broker made it, by itself or for a user of an admin client."""


def adopt_layout(tx: Connection, topic: TopicRow, layout: SegmentLayout, operation: Operation) -> None:
    """Write the first layout of a topic, which `operation` attaches: insert all segments, set the epoch, the next
    segment id and the cooldowns that reshapes of the broker began, write one row of history with `operation`, and
    make the topic live. The state of the topic is not checked. The caller holds the lock of the topic row. Raises
    LostRace if the topic row has changed.
    """
    topics.update_topic(
        tx,
        topic,
        state="live",
        epoch=layout.epoch,
        next_segment_id=_next_id(topic, layout),
        **_stamps(topic, layout),
    )
    _insert(tx, topic, layout, layout.segments, recorded=())
    change = {"topic_id": topic.topic_id, "epoch": layout.epoch, "kind": "mirrored", "mirrored_from": 0}
    requester = {"operation_id": operation.operation_id, "origin": operation.origin.value}
    tx.execute(text(_CHANGE), {**change, **requester, "actor": operation.actor, "reason": operation.reason})


def follow_layout(tx: Connection, topic: TopicRow, layout: SegmentLayout) -> tuple[LayoutStep, ...]:
    """Write the layout that was read from the broker: created, sealed and pruned segments, the topic's epoch, next
    segment id and cooldowns, and the history. The load of pruned segments is deleted. An operation that requested a
    step gets the epoch of the step. The caller holds the lock of the topic row.

    Return the steps that could be determined, in the order of their epochs; each step is the change of one epoch. If
    the topic has the epoch of the layout already, nothing is written, and the result is empty. Raises Conflict if the
    layout is older than the rows, and LostRace if the topic row has changed.
    """
    stored = layouts.load_layout(tx, topic.topic_id)
    steps = steps_between(stored, layout)
    pruned_ids = sorted(stored.segments.keys() - layout.segments.keys())
    if layout.epoch == stored.epoch:
        return ()
    operations = _requested_operations(tx, topic, steps)
    topics.update_topic(
        tx,
        topic,
        epoch=layout.epoch,
        next_segment_id=_next_id(topic, layout),
        **_stamps(topic, layout, stored, steps, operations),
    )
    _insert(
        tx, topic, layout, layout.segments.keys() - stored.segments.keys(), recorded=_recorded_ids(tx, topic)
    )
    for segment in layout.segments.values():
        previous = stored.segments.get(segment.segment_id)
        if segment.sealed_epoch is not None and previous is not None and previous.is_active:
            seal = {"epoch": segment.sealed_epoch, "at": _when(segment.sealed_at_ms)}
            segment_key = {"topic_id": topic.topic_id, "segment_id": segment.segment_id}
            tx.execute(text(_SEAL), {**segment_key, **seal})
    if pruned_ids:
        prune = {"topic_id": topic.topic_id, "segment_ids": pruned_ids, "epoch": layout.epoch}
        tx.execute(text(_PRUNE), prune)
    forget_rates(tx, topic.topic_id, pruned_ids)
    _write_history(tx, topic, layout, steps, operations)
    forget_counts(tx, topic.topic_id, pruned_ids)
    return steps


OperationByEpoch = Mapping[int, Row[Any]]


def _requested_operations(tx: Connection, topic: TopicRow, steps: Sequence[LayoutStep]) -> OperationByEpoch:
    """Return, by epoch, the rows of the operations that requested the steps: operations of any state, without an epoch so far, of the same
    kind and with the same sealed segments; of several, the newest.

    A segment is sealed once, so the sealed segments identify the operation. Steps of an unknown kind or without an operation are absent.
    """
    sealed_ids = [segment_id for step in steps for segment_id in step.sealed_ids]
    if not sealed_ids:
        return {}
    rows = tx.execute(text(_REQUESTED), {"topic_id": topic.topic_id, "segment_ids": sealed_ids}).all()
    operations: dict[int, Row[Any]] = {}
    for step in steps:
        for row in rows:
            if (
                step.kind is not None
                and row.kind == step.kind.value
                and sorted(row.parent_ids) == list(step.sealed_ids)
            ):
                operations[step.epoch] = row
    return operations


def _write_history(
    tx: Connection,
    topic: TopicRow,
    layout: SegmentLayout,
    steps: Sequence[LayoutStep],
    operations: OperationByEpoch,
) -> None:
    """Write the history of the epochs after `topic.epoch` up to the epoch of the layout. `topic` is the topic row
    before this change. `steps` are in the order of their epochs, and `operations` are by the epoch of the step that
    the operation requested.

    A step that an operation requested gets a row with the operation, and the operation gets the epoch of the step. A
    step without an operation gets a `mirrored` row, which also covers the epochs without a step before this step. Any
    other epochs without a step get a `mirrored` row of their own.
    """
    written_epoch = topic.epoch
    for step in steps:
        row = operations.get(step.epoch)
        if row is None:
            _write_mirrored(tx, topic, written_epoch, step.epoch, _reason(step))
        else:
            if step.epoch > written_epoch + 1:
                _write_mirrored(tx, topic, written_epoch, step.epoch - 1, "segments pruned by the broker")
            remark = (
                " (aborted by Cleave, done by the broker later)"
                if row.state in ("aborting", "aborted")
                else ""
            )
            requester = {"operation_id": row.operation_id, "origin": row.origin, "actor": row.actor}
            change = {
                "topic_id": topic.topic_id,
                "epoch": step.epoch,
                "kind": row.kind,
                "mirrored_from": None,
            }
            tx.execute(text(_CHANGE), {**change, **requester, "reason": row.reason + remark})
        written_epoch = step.epoch
    if layout.epoch > written_epoch:
        _write_mirrored(tx, topic, written_epoch, layout.epoch, "segments pruned by the broker")


def _write_mirrored(tx: Connection, topic: TopicRow, from_epoch: int, epoch: int, reason: str) -> None:
    """Write one row of history for all changes after `from_epoch` up to `epoch`, which no operation requested."""
    change = {"topic_id": topic.topic_id, "epoch": epoch, "kind": "mirrored", "mirrored_from": from_epoch}
    tx.execute(text(_CHANGE), {**change, **FOREIGN, "reason": reason})


def _reason(step: LayoutStep) -> str:
    """Return a text with the kind of the step and its sealed and created segments: `split on the broker: sealed 3, created 7, 8`. An
    unknown kind is `change`; no segments are `none`.
    """
    kind = step.kind.value if step.kind is not None else "change"
    sealed, created = (", ".join(map(str, ids)) or "none" for ids in (step.sealed_ids, step.created_ids))
    return f"{kind} on the broker: sealed {sealed}, created {created}"


def _stamps(
    topic: TopicRow,
    layout: SegmentLayout,
    since: SegmentLayout | None = None,
    steps: Sequence[LayoutStep] = (),
    operations: OperationByEpoch = MappingProxyType({}),
) -> dict[str, datetime]:
    """Return the values of the topic's cooldown columns, by column, that follow from the reshapes after the recorded
    layout `since` (None: from all reshapes in `layout`). A column without a reshape is absent. No value is earlier
    than the stored time.

    A cooldown begins at the intent of the operation that requested the reshape, or without an operation at the
    creation of the children. `steps` are the steps from `since` to `layout`. `operations` has the operation that
    requested a step, by the epoch of the step.
    """
    own_child_ids = {
        segment_id for step in steps if step.epoch in operations for segment_id in step.created_ids
    }
    starts = [
        (_STAMPS[kind], _when(created_at_ms))
        for kind, created_at_ms in last_reshape_times(layout, since, own_child_ids).items()
    ]
    requested = [(step, operations[step.epoch]) for step in steps if step.epoch in operations]
    starts += [(_STAMPS[step.kind], operation.intended_at) for step, operation in requested if step.kind]
    starts += [
        ("last_consumer_act_at", operation.intended_at)
        for _, operation in requested
        if is_for_consumers(operation.kind, operation.reason)
    ]
    stamps: dict[str, datetime] = {}
    for column, at in starts:
        stamps[column] = max(
            instant for instant in (at, stamps.get(column), getattr(topic, column)) if instant is not None
        )
    return stamps


def _insert(
    tx: Connection, topic: TopicRow, layout: SegmentLayout, ids: Iterable[int], recorded: Collection[int]
) -> None:
    """Insert the rows of the segments `ids` of the layout, and the links to their parents. A link is left out if the
    parent has no row, because the parent was pruned before the layout was first read. `recorded` contains the ids of
    the segments that have rows already.
    """
    segments = [layout.segments[i] for i in sorted(ids)]
    logs = {segment.segment_id: backing_topic_name(topic.name, segment) for segment in segments}
    layouts.insert_segments(tx, topic.topic_id, segments, logs, recorded=recorded)


def _recorded_ids(tx: Connection, topic: TopicRow) -> frozenset[int]:
    """Return the ids of all segments of the topic that have rows, including pruned segments."""
    return frozenset(tx.execute(text(_KNOWN), {"topic_id": topic.topic_id}).scalars())


def _next_id(topic: TopicRow, layout: SegmentLayout) -> int:
    """Return the next segment id, which never falls, although a topic that was created again on the broker starts its ids at 0."""
    return max(topic.next_segment_id, layout.next_segment_id)


def _when(instant_ms: int | None) -> datetime:
    """Return the time; the Unix epoch for an unknown time of a migrated segment."""
    return to_datetime(instant_ms or 0)
