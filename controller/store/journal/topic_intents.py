"""Writes intents about a whole topic: create, delete, and prune.

The row of an operation is written before any effect. Each function checks, under the topic's lock, the states of the topic and of the
segments, and writes the operation, its parents and its reserved children under the request key. A repeated request key returns the
first operation and writes nothing; a key that was used for another request raises Conflict. Changes of the topic row also compare its
row version; without the lock, concurrent requests would fail instead of waiting. Logs are not changed here; runners do that. Reshapes
are in `reshape_intents`, subscriptions in `subscription_intents`, adoptions in `adoptions`, mirrored topics in `mirror_intents`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sqlalchemy import Connection, text

from controller.domain.errors import Conflict, InvalidInput, TopicNotLive
from controller.domain.layout import SegmentLayout
from controller.domain.operation import MIRRORED, Operation, OperationKind
from controller.domain.policy import PolicyOverride
from controller.domain.reshape import ChildPlan
from controller.store.journal.intent_checks import busy_segments, demand_free
from controller.store.journal.operations import BackingTopic, NewOperation, Request, write_operation
from controller.store.journal.request_keys import Intent, once
from controller.store.mirrors import mirrors
from controller.store.topics import drains, held_topics, topics
from controller.store.topics.topics import TopicState

_SEALED = """
    SELECT segment_id FROM cleave.segment
     WHERE topic_id = :topic_id AND segment_id = ANY (:segment_ids) AND state = 'SEALED' AND pruned_epoch IS NULL
"""


def intend_create(
    tx: Connection,
    name: str,
    *,
    segments: int,
    data_plane: str,
    backing_topic: BackingTopic,
    bucket_budget: int,
    max_buckets: int,
    request: Request,
    policy: PolicyOverride | None = None,
    properties: Mapping[str, str] | None = None,
) -> Intent:
    """Insert the topic in state creating, and write the intent to create its `segments` equal segments. The topic stays in this state
    until the runner commits.

    Segment ids continue after the ids of the last topic of the same name. All segments share `bucket_budget` entry buckets, at most
    `max_buckets` each. The caller checks that `policy` fits the levels above. A repeated request key returns the first operation. Raises
    TopicExists, InvalidInput for an invalid name and for a number of segments outside 1..65536, LostRace if another topic used the name in
    the meantime, and Conflict if the request key was used for another topic or kind of operation, or for a creation with another number of
    segments, data plane, policy or properties.
    """
    parameters = {
        "segments": segments,
        "policy": {} if policy is None else policy.to_document(),
        "properties": dict(properties or {}),
    }

    def write_intent() -> Operation:
        first_id = topics.demand_free_name(tx, name)
        first = SegmentLayout.initial(segments, bucket_budget=bucket_budget, max_buckets=max_buckets, now=0)
        topic = topics.insert_topic(
            tx,
            name,
            data_plane=data_plane,
            next_segment_id=first_id + segments,
            actor=request.actor,
            policy=policy,
            properties=properties,
        )
        children = [ChildPlan(first_id + s.segment_id, s.hash_range, s.bucket_splits) for s in first.active]
        new_operation = NewOperation(OperationKind.CREATE, children=children, parameters=parameters)
        return write_operation(tx, topic, new_operation, request, backing_topic)

    return once(tx, request, write_intent, name, OperationKind.CREATE, data_plane=data_plane, **parameters)


def intend_delete(tx: Connection, topic_id: int, request: Request) -> Intent:
    """Set the topic to deleting, and write the intent to delete it with all its logs. The topic accepts no more requests; its reshapes
    abort or finish first.

    A topic in state creating can be deleted too. A repeated request key returns the first operation. Raises TopicNotFound,
    TopicNotLive, TopicHeld if the topic is held or not verified, and Conflict if the request key was used for another topic or kind of
    operation.
    """

    def write_intent() -> Operation:
        topic = topics.get_topic(tx, topic_id, lock=True)
        if topic.state not in (TopicState.LIVE, TopicState.CREATING):
            raise TopicNotLive(f"topic {topic.name} is {topic.state} already; there is nothing to delete")
        held_topics.demand_topic_may_act(tx, topic_id)
        topics.update_topic(tx, topic, state=TopicState.DELETING.value)
        mirrored = {MIRRORED: True} if mirrors.get_mirror(tx, topic_id) is not None else {}
        return write_operation(tx, topic, NewOperation(OperationKind.DELETE, parameters=mirrored), request)

    return once(tx, request, write_intent, topic_id, OperationKind.DELETE)


def intend_prune(tx: Connection, topic_id: int, segment_ids: Collection[int], request: Request) -> Intent:
    """Write the intent to prune sealed segments that every live subscription has drained, and to delete their logs.

    A repeated request key returns the first operation. Raises TopicNotFound, TopicNotLive, TopicHeld if the topic is held or not verified,
    SegmentBusy if a segment is in a live operation, InvalidInput for no segments, and Conflict, with the segment, if a segment is active,
    pruned, unknown or not drained. Raises Conflict also if the request key was used for another topic, kind of operation or set of segments.
    """
    to_prune = sorted(set(segment_ids))

    def write_intent() -> Operation:
        topic = topics.lock_live_topic(tx, topic_id)
        held_topics.demand_topic_may_act(tx, topic_id)
        if not to_prune:
            raise InvalidInput(f"no segment of topic {topic.name} was named to prune; give at least one")
        demand_free(topic.name, busy_segments(tx, topic_id), to_prune)
        sealed = tx.execute(text(_SEALED), {"topic_id": topic_id, "segment_ids": to_prune}).scalars().all()
        unprunable_ids = sorted(set(to_prune) - set(sealed))
        if unprunable_ids:
            raise Conflict(
                f"segment {unprunable_ids[0]} of topic {topic.name} is active, pruned or unknown; name sealed segments"
            )
        undrained = drains.undrained_subscriptions(tx, topic_id, to_prune)
        for segment_id, subscription_names in undrained.items():
            raise Conflict(
                f"segment {segment_id} of topic {topic.name} is not drained by {', '.join(subscription_names)}; wait until it is drained"
            )
        return write_operation(tx, topic, NewOperation(OperationKind.PRUNE, to_prune), request)

    return once(tx, request, write_intent, topic_id, OperationKind.PRUNE, segment_ids=to_prune)
