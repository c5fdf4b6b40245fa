"""Adoptions: a plain or partitioned topic becomes the sealed first generation of a scalable topic (PIP-475).

The old logs become segments that cover the whole ring, because partitions are chosen by another hash. Every created segment
descends from all of them, and is assigned after they are drained. Epoch 0 is the topic as it existed, epoch 1 the first layout.
This module writes the intent and the rows of the commit. The operation runner terminates the old logs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from controller.domain.errors import InvalidInput
from controller.domain.hash_range import FULL_RANGE
from controller.domain.layout import SegmentLayout
from controller.domain.operation import ADOPTED, STOCK, Operation, OperationKind
from controller.domain.reshape import ChildPlan
from controller.domain.segment import Segment, SegmentState
from controller.domain.subscription_consumers import SubscriptionConsumers
from controller.store.journal.operations import BackingTopic, NewOperation, Request, write_operation
from controller.store.journal.request_keys import Intent, once
from controller.store.topics import layouts, subscriptions, topics
from controller.store.topics.subscriptions import SubscriptionKind
from controller.store.topics.topics import TopicRow

FOUND_EPOCH, FIRST_EPOCH = 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """The topics to adopt, and the layout to create."""

    name: str
    """Name of the scalable topic."""
    data_plane: str
    old_topics: Sequence[str]
    """The plain topic, or the partitions of the partitioned topic, on the data plane."""
    subscriptions: Mapping[str, SubscriptionKind]
    """Kinds of the subscriptions to record, by name."""
    segments: int
    """Number of equal segments to create, 1 to 65536."""
    bucket_budget: int
    """Number of entry buckets that all segments share."""
    max_buckets: int
    """Maximum number of entry buckets of one segment."""
    stock: frozenset[str] = frozenset()
    """Names in `subscriptions` that standard consumers continue to read."""


def intend_adopt(
    tx: Connection, adoption: Adoption, *, backing_topic: BackingTopic, request: Request
) -> Intent:
    """Write the intent of the adoption, and the rows of the topic (state creating) and its subscriptions. The intent
    reserves segment ids for the old topics first, then for the created segments. The function does not check that the
    old topics exist.

    If the request key was used for this adoption, nothing is written, and the earlier operation is returned with
    `repeated` True. If the key was used for another topic or kind of operation, or for an adoption with other old
    topics, another number of segments, data plane or stock subscriptions, Conflict is raised.

    Raises InvalidInput for an adoption without an old topic (even with a used key), for an invalid name, and for a
    number of segments outside 1 to 65536; TopicExists; LostRace if another transaction used the name in the meantime;
    and the errors of `request_keys.once`.
    """
    if not adoption.old_topics:
        raise InvalidInput(f"the adoption of {adoption.name} names no topic; name a topic that exists")

    parameters = {ADOPTED: list(adoption.old_topics), STOCK: sorted(adoption.stock)}

    def write_intent() -> Operation:
        first_id = topics.demand_free_name(tx, adoption.name) + len(adoption.old_topics)
        first = SegmentLayout.initial(
            adoption.segments, bucket_budget=adoption.bucket_budget, max_buckets=adoption.max_buckets, now=0
        )
        topic = topics.insert_topic(
            tx,
            adoption.name,
            data_plane=adoption.data_plane,
            next_segment_id=first_id + adoption.segments,
            actor=request.actor,
        )
        for name, kind in adoption.subscriptions.items():
            consumers = (
                SubscriptionConsumers.STOCK if name in adoption.stock else SubscriptionConsumers.CLEAVE
            )
            subscriptions.insert_subscription(tx, topic.topic_id, name, kind, FOUND_EPOCH, consumers)
        children = [ChildPlan(first_id + s.segment_id, s.hash_range, s.bucket_splits) for s in first.active]
        new_operation = NewOperation(OperationKind.ADOPT, children=children, parameters=parameters)
        return write_operation(tx, topic, new_operation, request, backing_topic)

    return once(
        tx,
        request,
        write_intent,
        adoption.name,
        OperationKind.ADOPT,
        data_plane=adoption.data_plane,
        segments=adoption.segments,
        **parameters,
    )


def insert_generations(tx: Connection, topic: TopicRow, operation: Operation, at: datetime) -> None:
    """Insert the segments of an adoption: the old topics as SEALED segments from epoch 0 to epoch 1, and the reserved
    children of the operation as ACTIVE segments of epoch 1. Each old topic covers the whole ring, and each child has
    all old topics as parents. `at` is the time of the commit. The topic row and the history are not changed.
    """
    first_id = min(child.plan.segment_id for child in operation.children) - len(operation.fenced_topics)
    old_ids = tuple(range(first_id, first_id + len(operation.fenced_topics)))
    old_topics = dict(zip(old_ids, operation.fenced_topics, strict=True))
    adopted = (
        Segment(
            segment_id,
            FULL_RANGE,
            SegmentState.SEALED,
            created_epoch=FOUND_EPOCH,
            sealed_epoch=FIRST_EPOCH,
            legacy_topic_name=old_topic,
        )
        for segment_id, old_topic in old_topics.items()
    )
    children = (
        Segment(
            child.plan.segment_id,
            child.plan.hash_range,
            parent_ids=old_ids,
            created_epoch=FIRST_EPOCH,
            bucket_splits=child.plan.bucket_splits,
            merge_depth=1 if len(old_ids) > 1 else 0,  # Pulsar counts a child of several parents as a merge
        )
        for child in operation.children
    )
    names = {child.plan.segment_id: child.backing_topic for child in operation.children}
    layouts.insert_segments(tx, topic.topic_id, (*adopted, *children), old_topics | names, at)
