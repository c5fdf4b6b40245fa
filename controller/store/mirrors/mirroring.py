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

from sqlalchemy import Connection, Row, insert, text

from controller.clock import to_datetime
from controller.domain.decision import is_for_consumers
from controller.domain.layout import SegmentLayout
from controller.domain.mirroring import LayoutStep, last_reshape_times, steps_between
from controller.domain.operation import Operation
from controller.domain.reshape import ReshapeKind
from controller.domain.segment import Segment, backing_topic_name
from controller.store.load.forgetting import FORGET_LOADS
from controller.store.postgres.tables import SEGMENT, SEGMENT_PARENT
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
_OURS = """
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
    """Write the first layout of the topic: all segments, the running cooldowns of the broker, and one row of history by the operation
    that attaches the topic.
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
    by = {"operation_id": operation.operation_id, "origin": operation.origin.value}
    tx.execute(text(_CHANGE), {**change, **by, "actor": operation.actor, "reason": operation.reason})


def follow_layout(tx: Connection, topic: TopicRow, layout: SegmentLayout) -> tuple[LayoutStep, ...]:
    """Update the rows to the layout that was read. Return the steps that could be determined; none if the layout is unchanged.

    Raises Conflict if the layout is older than the rows, LostRace if the topic row has changed.
    """
    before = layouts.load_layout(tx, topic.topic_id)
    steps = steps_between(before, layout)
    gone = sorted(before.segments.keys() - layout.segments.keys())
    if layout.epoch == before.epoch:
        return ()
    ours = _matched(tx, topic, steps)
    topics.update_topic(
        tx,
        topic,
        epoch=layout.epoch,
        next_segment_id=_next_id(topic, layout),
        **_stamps(topic, layout, before, steps, ours),
    )
    _insert(
        tx, topic, layout, layout.segments.keys() - before.segments.keys(), recorded=_recorded_ids(tx, topic)
    )
    for segment in layout.segments.values():
        earlier = before.segments.get(segment.segment_id)
        if segment.sealed_epoch is not None and earlier is not None and earlier.is_active:
            sealed = {"epoch": segment.sealed_epoch, "at": _when(segment.sealed_at_ms)}
            of_segment = {"topic_id": topic.topic_id, "segment_id": segment.segment_id}
            tx.execute(text(_SEAL), {**of_segment, **sealed})
    if gone:
        pruned = {"topic_id": topic.topic_id, "segment_ids": gone, "epoch": layout.epoch}
        tx.execute(text(_PRUNE), pruned)
        tx.execute(text(FORGET_LOADS), pruned)
    _write_history(tx, topic, layout, steps, ours)
    return steps


Ours = Mapping[int, Row[Any]]


def _matched(tx: Connection, topic: TopicRow, steps: Sequence[LayoutStep]) -> Ours:
    """Return, by epoch, the operations that requested the steps. A segment is sealed once, so the sealed segments identify the operation."""
    sealed = [segment_id for step in steps for segment_id in step.sealed_ids]
    if not sealed:
        return {}
    rows = tx.execute(text(_OURS), {"topic_id": topic.topic_id, "segment_ids": sealed}).all()
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
    tx: Connection, topic: TopicRow, layout: SegmentLayout, steps: Sequence[LayoutStep], ours: Ours
) -> None:
    at_epoch = topic.epoch
    for step in steps:
        row = ours.get(step.epoch)
        if row is None:
            _mirrored(tx, topic, at_epoch, step.epoch, _reason(step))
        else:
            if step.epoch > at_epoch + 1:
                _mirrored(tx, topic, at_epoch, step.epoch - 1, "segments pruned by the broker")
            late = (
                " (aborted by Cleave, done by the broker later)"
                if row.state in ("aborting", "aborted")
                else ""
            )
            by = {"operation_id": row.operation_id, "origin": row.origin, "actor": row.actor}
            change = {
                "topic_id": topic.topic_id,
                "epoch": step.epoch,
                "kind": row.kind,
                "mirrored_from": None,
            }
            tx.execute(text(_CHANGE), {**change, **by, "reason": row.reason + late})
        at_epoch = step.epoch
    if layout.epoch > at_epoch:
        _mirrored(tx, topic, at_epoch, layout.epoch, "segments pruned by the broker")


def _mirrored(tx: Connection, topic: TopicRow, from_epoch: int, epoch: int, reason: str) -> None:
    change = {"topic_id": topic.topic_id, "epoch": epoch, "kind": "mirrored", "mirrored_from": from_epoch}
    tx.execute(text(_CHANGE), {**change, **FOREIGN, "reason": reason})


def _reason(step: LayoutStep) -> str:
    kind = step.kind.value if step.kind is not None else "change"
    sealed, created = (", ".join(map(str, ids)) or "none" for ids in (step.sealed_ids, step.created_ids))
    return f"{kind} on the broker: sealed {sealed}, created {created}"


def _stamps(
    topic: TopicRow,
    layout: SegmentLayout,
    since: SegmentLayout | None = None,
    steps: Sequence[LayoutStep] = (),
    ours: Ours = MappingProxyType({}),
) -> dict[str, datetime]:
    """Return the cooldown columns. A cooldown begins at the intent of the operation, or, without one, at the creation of the children."""
    of_ours = {segment_id for step in steps if step.epoch in ours for segment_id in step.created_ids}
    begun = [
        (_STAMPS[kind], _when(born)) for kind, born in last_reshape_times(layout, since, of_ours).items()
    ]
    own = [(step, ours[step.epoch]) for step in steps if step.epoch in ours]
    begun += [(_STAMPS[step.kind], act.intended_at) for step, act in own if step.kind]
    begun += [
        ("last_consumer_act_at", act.intended_at) for _, act in own if is_for_consumers(act.kind, act.reason)
    ]
    stamps: dict[str, datetime] = {}
    for column, at in begun:
        stamps[column] = max(
            instant for instant in (at, stamps.get(column), getattr(topic, column)) if instant is not None
        )
    return stamps


def _insert(
    tx: Connection, topic: TopicRow, layout: SegmentLayout, ids: Iterable[int], recorded: Collection[int]
) -> None:
    new = [layout.segments[i] for i in sorted(ids)]
    if not new:
        return
    tx.execute(insert(SEGMENT), [_row(topic, segment) for segment in new])
    present = {*recorded, *(segment.segment_id for segment in new)}
    links = [
        {
            "topic_id": topic.topic_id,
            "child_id": segment.segment_id,
            "parent_id": parent_id,
            "ordinal": ordinal,
        }
        for segment in new
        for ordinal, parent_id in enumerate(segment.parent_ids)
        if parent_id in present  # a parent that was pruned before the first read has no row
    ]
    if links:
        tx.execute(insert(SEGMENT_PARENT), links)


def _row(topic: TopicRow, segment: Segment) -> dict[str, object]:
    sealed_at = None if segment.sealed_epoch is None else _when(segment.sealed_at_ms)
    return {
        "topic_id": topic.topic_id,
        "segment_id": segment.segment_id,
        "range_start": segment.hash_range.start,
        "range_end": segment.hash_range.end,
        "state": segment.state.value,
        "merge_depth": segment.merge_depth,
        "bucket_splits": list(segment.bucket_splits),
        "created_epoch": segment.created_epoch,
        "created_at": _when(segment.created_at_ms),
        "sealed_epoch": segment.sealed_epoch,
        "sealed_at": sealed_at,
        "backing_topic": backing_topic_name(topic.name, segment),
        "legacy_topic_name": segment.legacy_topic_name,
    }


def _recorded_ids(tx: Connection, topic: TopicRow) -> frozenset[int]:
    return frozenset(tx.execute(text(_KNOWN), {"topic_id": topic.topic_id}).scalars())


def _next_id(topic: TopicRow, layout: SegmentLayout) -> int:
    """Return the next segment id, which never falls, although a topic that was created again on the broker starts its ids at 0."""
    return max(topic.next_segment_id, layout.next_segment_id)


def _when(instant_ms: int | None) -> datetime:
    """Return the time; the Unix epoch for an unknown time of a migrated segment."""
    return to_datetime(instant_ms or 0)
