"""The dead-letter log of a subscription, which stores messages that could not be processed.

Each (topic, subscription) has a log of its own on the topic's data plane. The worker that leads the
subscription creates the log when a consumer first needs it. On Pulsar the log is the plain topic that
Pulsar's own clients would use, `<topic>-<subscription>-DLQ` in the topic's namespace. The log has one
subscription, `redrive`, from its first message on. `redrive` keeps the messages that no consumer has read; a
consumer that puts messages back into the topic acknowledges them there. Deleting the subscription or the
topic keeps the log, because it may hold messages that were never examined.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from controller.dataplane.base import DataPlane, LogState
from controller.dataplane.registry import configured, dead_letter_topic
from controller.domain.delivery_events import REDRIVE
from controller.domain.errors import NotFound
from controller.store.postgres.engine import Store
from controller.store.topics import subscriptions, topics


@dataclass(frozen=True, slots=True)
class DeadLetterLog:
    """Address of a subscription's dead-letter log. `topic` is the topic whose messages the log stores, and
    `backing_topic` the name of the log on the data plane.
    """

    topic: str
    data_plane: str
    backing_topic: str


def make(store: Store, planes: Mapping[str, DataPlane], topic_id: int, subscription: str) -> DeadLetterLog:
    """Create the subscription's dead-letter log and the log's subscription `redrive`, as far as they do not
    exist, and return the address of the log. An existing log keeps its messages, and an existing `redrive` its
    position.

    Raises TopicNotFound; SubscriptionNotFound; Unsupported if the data plane is not configured in this process or
    has no dead-letter logs; and the errors of the data plane. The call may be repeated after an error.
    """
    letters = _of(store, topic_id, subscription)
    configured(planes, letters.data_plane, letters.topic).create_segment(letters.backing_topic, [REDRIVE])
    return letters


def find(store: Store, planes: Mapping[str, DataPlane], topic: str, subscription: str) -> DeadLetterLog:
    """Return the address of the subscription's dead-letter log, which exists but may be empty. `topic` is the
    name of the topic.

    Raises TopicNotFound; SubscriptionNotFound; NotFound if the log does not exist, because no consumer has needed
    it yet; Unsupported if the data plane is not configured in this process or has no dead-letter logs; and the
    errors of the data plane.
    """
    topic_id = store.in_transaction(topics.find_topic, topic).topic_id
    letters = _of(store, topic_id, subscription)
    if (
        configured(planes, letters.data_plane, letters.topic).segment_state(letters.backing_topic)
        is LogState.MISSING
    ):
        raise NotFound(
            f"{topic}: {subscription} has no dead letters; {letters.backing_topic} was never created"
        )
    return letters


def count(planes: Mapping[str, DataPlane], log: DeadLetterLog) -> int:
    """Return the number of messages in the log that were not put back into the topic yet, and so not
    acknowledged on `redrive`; 0 if the log or `redrive` does not exist. Raises Unsupported if the data plane
    is not configured here, and the errors of the data plane.
    """
    return configured(planes, log.data_plane, log.topic).backlog(log.backing_topic, REDRIVE) or 0


def _of(store: Store, topic_id: int, subscription: str) -> DeadLetterLog:
    """Return the address of the subscription's dead-letter log, whether or not the log exists. The data plane is
    not called. Raises TopicNotFound; SubscriptionNotFound; and Unsupported if the topic's data plane has no
    dead-letter logs.
    """
    with store.transaction() as tx:
        topic = topics.get_topic(tx, topic_id)
        subscriptions.get_subscription(tx, topic_id, subscription)
    return DeadLetterLog(
        topic.name, topic.data_plane, dead_letter_topic(topic.data_plane, topic.name, subscription)
    )
