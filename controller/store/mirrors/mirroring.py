"""A broker's layout, as it was read, written into the tables that hold Cleave's own: epoch to epoch.

The caller holds the topic's row lock. Epochs that can be told get a row of history each: ours by the operation
that asked for them, anybody else's as `mirrored`; what nothing is known of becomes one `mirrored` row over the gap.
Nothing is asked of the broker here.
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
from controller.domain.mirroring import LayoutStep, acts_seen, steps_between
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
"""Who is named for what we did not ask for: the broker, on its own or for somebody with an admin client."""


def adopt_layout(tx: Connection, topic: TopicRow, layout: SegmentLayout, operation: Operation) -> None:
    """The first reading: every segment as it is, the cooldowns the broker has running, and one row of history by the
    operation that attaches the topic.
    """
    topics.update_topic(
        tx,
        topic,
        state="live",
        epoch=layout.epoch,
        next_segment_id=_next_id(topic, layout),
        **_stamps(topic, layout),
    )
    _insert(tx, topic, layout, layout.segments, known=())
    change = {"topic_id": topic.topic_id, "epoch": layout.epoch, "kind": "mirrored", "mirrored_from": 0}
    by = {"operation_id": operation.operation_id, "origin": operation.origin.value}
    tx.execute(text(_CHANGE), {**change, **by, "actor": operation.actor, "reason": operation.reason})


def follow_layout(tx: Connection, topic: TopicRow, layout: SegmentLayout) -> tuple[LayoutStep, ...]:
    """Bring the rows to what was read; returns the steps that could be told. Nothing new changes nothing.

    Raises Conflict when the broker's layout is older than the rows, LostRace when the topic row moved.
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
    _insert(tx, topic, layout, layout.segments.keys() - before.segments.keys(), known=_known(tx, topic))
    for segment in layout.segments.values():
        known = before.segments.get(segment.segment_id)
        if segment.sealed_epoch is not None and known is not None and known.is_active:
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
    """The operation behind each step of ours: a segment is sealed once, so its parents name it."""
    sealed = [segment_id for step in steps for segment_id in step.sealed_ids]
    if not sealed:
        return {}
    rows = tx.execute(text(_OURS), {"topic_id": topic.topic_id, "segment_ids": sealed}).all()
    found: dict[int, Row[Any]] = {}
    for step in steps:
        for row in rows:
            if (
                step.kind is not None
                and row.kind == step.kind.value
                and sorted(row.parent_ids) == list(step.sealed_ids)
            ):
                found[step.epoch] = row
    return found


def _write_history(
    tx: Connection, topic: TopicRow, layout: SegmentLayout, steps: Sequence[LayoutStep], ours: Ours
) -> None:
    at_epoch = topic.epoch
    for step in steps:
        row = ours.get(step.epoch)
        if row is None:
            _mirrored(tx, topic, at_epoch, step.epoch, _told(step))
        else:
            if step.epoch > at_epoch + 1:
                _mirrored(tx, topic, at_epoch, step.epoch - 1, "segments pruned by the broker")
            late = (
                " (given up here, done by the broker later)" if row.state in ("aborting", "aborted") else ""
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


def _told(step: LayoutStep) -> str:
    what = step.kind.value if step.kind is not None else "change"
    sealed, created = (", ".join(map(str, ids)) or "none" for ids in (step.sealed_ids, step.created_ids))
    return f"{what} on the broker: sealed {sealed}, made {created}"


def _stamps(
    topic: TopicRow,
    layout: SegmentLayout,
    since: SegmentLayout | None = None,
    steps: Sequence[LayoutStep] = (),
    ours: Ours = MappingProxyType({}),
) -> dict[str, datetime]:
    """A cooldown counts from when the act began: the intent where it was ours, else the children's birth."""
    of_ours = {segment_id for step in steps if step.epoch in ours for segment_id in step.created_ids}
    begun = [(_STAMPS[kind], _when(born)) for kind, born in acts_seen(layout, since, of_ours).items()]
    own = [(step, ours[step.epoch]) for step in steps if step.epoch in ours]
    begun += [(_STAMPS[step.kind], act.intended_at) for step, act in own if step.kind]
    begun += [
        ("last_consumer_act_at", act.intended_at) for _, act in own if is_for_consumers(act.kind, act.reason)
    ]
    stamps: dict[str, datetime] = {}
    for column, at in begun:
        stamps[column] = max(
            one for one in (at, stamps.get(column), getattr(topic, column)) if one is not None
        )
    return stamps


def _insert(
    tx: Connection, topic: TopicRow, layout: SegmentLayout, ids: Iterable[int], known: Collection[int]
) -> None:
    new = [layout.segments[i] for i in sorted(ids)]
    if not new:
        return
    tx.execute(insert(SEGMENT), [_row(topic, segment) for segment in new])
    present = {*known, *(segment.segment_id for segment in new)}
    links = [
        {
            "topic_id": topic.topic_id,
            "child_id": segment.segment_id,
            "parent_id": parent_id,
            "ordinal": ordinal,
        }
        for segment in new
        for ordinal, parent_id in enumerate(segment.parent_ids)
        if parent_id in present  # a parent pruned before we ever saw it has no row to point at
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


def _known(tx: Connection, topic: TopicRow) -> frozenset[int]:
    return frozenset(tx.execute(text(_KNOWN), {"topic_id": topic.topic_id}).scalars())


def _next_id(topic: TopicRow, layout: SegmentLayout) -> int:
    """Never lowered: a topic made again on the broker starts its ids anew, ours only rise."""
    return max(topic.next_segment_id, layout.next_segment_id)


def _when(instant_ms: int | None) -> datetime:
    """Unknown times of migrated segments are the beginning of time."""
    return to_datetime(instant_ms or 0)
