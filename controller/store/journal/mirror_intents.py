"""Writes intents to attach and to detach a mirrored topic, whose layout a broker keeps (Pulsar 5).

The broker assigns ids and epochs, so an intent reserves none. `store/mirrors` reads and writes the rows of mirrors.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection

from controller.domain.errors import TopicNotLive
from controller.domain.layout import demand_initial_count
from controller.domain.operation import MIRRORED, Operation, OperationKind
from controller.domain.policy import PolicyOverride
from controller.store.journal.operations import NewOperation, Request, write_operation
from controller.store.journal.request_keys import Intent, once
from controller.store.topics import topics
from controller.store.topics.topics import TopicState


def intend_attach(
    tx: Connection,
    name: str,
    *,
    data_plane: str,
    request: Request,
    segments: int | None = None,
    policy: PolicyOverride | None = None,
    properties: Mapping[str, str] | None = None,
) -> Intent:
    """Insert the topic in state creating, and write the intent to attach the layout that the broker keeps. With `segments`, the runner
    first creates the topic on the broker with that number of segments. The caller checks that `policy` fits the levels above.

    A repeated request key returns the first operation. Raises TopicExists, InvalidInput for an invalid name and for a number of segments
    outside 1..65536, LostRace if another topic used the name in the meantime, and Conflict if the request key was used for another topic
    or kind of operation, or for an attachment with another number of segments, data plane, policy or properties.
    """
    parameters = {
        "create_segments": segments,
        "policy": {} if policy is None else policy.to_document(),
        "properties": dict(properties or {}),
    }

    def write_intent() -> Operation:
        if segments is not None:
            demand_initial_count(segments)
        topic = topics.insert_topic(
            tx,
            name,
            data_plane=data_plane,
            next_segment_id=topics.demand_free_name(tx, name),
            actor=request.actor,
            policy=policy,
            properties=properties,
        )
        new_operation = NewOperation(OperationKind.ATTACH, parameters={MIRRORED: True, **parameters})
        return write_operation(tx, topic, new_operation, request)

    return once(tx, request, write_intent, name, OperationKind.ATTACH, data_plane=data_plane, **parameters)


def intend_detach(tx: Connection, topic_id: int, request: Request) -> Intent:
    """Set the topic to deleting, and write the intent to detach the topic, which returns its layout to the broker's own controller. The
    logs are not changed. The caller has checked that the topic is mirrored.

    A repeated request key returns the first operation. Raises TopicNotFound, TopicNotLive, and Conflict if the request key was used
    for another topic or kind of operation.
    """

    def write_intent() -> Operation:
        topic = topics.get_topic(tx, topic_id, lock=True)
        if topic.state is not TopicState.LIVE:
            raise TopicNotLive(f"topic {topic.name} is {topic.state}; only a live topic can be detached")
        topics.update_topic(tx, topic, state=TopicState.DELETING.value)
        return write_operation(
            tx, topic, NewOperation(OperationKind.DETACH, parameters={MIRRORED: True}), request
        )

    return once(tx, request, write_intent, topic_id, OperationKind.DETACH)
