"""The dead-letter log of a subscription: where messages are put that could not be handled.

A log of its own for each (topic, subscription), on the data plane of the topic, made by the worker that leads it when a consumer first
needs it. On Pulsar it is the plain topic that Pulsar's own clients would name so, `<topic>-<subscription>-DLQ` in the topic's namespace.
It has one subscription, `redrive`, from its first message on: that keeps what nobody has read yet, and whoever puts the messages
back into the topic acknowledges there. Deleting the subscription or the topic leaves it: it may hold what nobody has looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from controller.dataplane.base import DataPlane, LogState
from controller.domain.deliveries import REDRIVE
from controller.domain.errors import NotFound, Unsupported
from controller.store.postgres.engine import Store
from controller.store.topics import subscriptions, topics

_TOPIC = "topic://"


@dataclass(frozen=True, slots=True)
class DeadLetterLog:
    """Where a subscription's dead letters are."""

    topic: str
    data_plane: str
    backing_topic: str


class DeadLetterLogs:
    """For any thread."""

    def __init__(self, store: Store, planes: Mapping[str, DataPlane]) -> None:
        self._store, self._planes = store, planes

    def make(self, topic_id: int, subscription: str) -> DeadLetterLog:
        """The log, which is there from now on. Raises SubscriptionNotFound, Unsupported and what the data plane refuses with."""
        found = self._of(topic_id, subscription)
        self._plane(found).create_segment(found.backing_topic, [REDRIVE])
        return found

    def find(self, topic: str, subscription: str) -> DeadLetterLog:
        """The log. Raises TopicNotFound, SubscriptionNotFound; NotFound where nothing was ever put into it."""
        with self._store.transaction() as tx:
            topic_id = topics.find_topic(tx, topic).topic_id
        found = self._of(topic_id, subscription)
        if self._plane(found).segment_state(found.backing_topic) is LogState.MISSING:
            raise NotFound(
                f"{topic}: {subscription} has no dead letters; {found.backing_topic} was never made"
            )
        return found

    def count(self, log: DeadLetterLog) -> int:
        """Messages that are not put back yet."""
        return self._plane(log).backlog(log.backing_topic, REDRIVE) or 0

    def _of(self, topic_id: int, subscription: str) -> DeadLetterLog:
        with self._store.transaction() as tx:
            topic = topics.get_topic(tx, topic_id)
            subscriptions.get_subscription(tx, topic_id, subscription)
        return DeadLetterLog(
            topic.name, topic.data_plane, dead_letter_topic(topic.data_plane, topic.name, subscription)
        )

    def _plane(self, log: DeadLetterLog) -> DataPlane:
        plane = self._planes.get(log.data_plane)
        if plane is None:
            raise Unsupported(
                f"{log.topic} is on data plane {log.data_plane!r}, which is not configured here"
            )
        return plane


def dead_letter_topic(data_plane: str, topic: str, subscription: str) -> str:
    """Name of the log. Raises Unsupported for a data plane on which Cleave makes no logs of its own."""
    local = topic.removeprefix(_TOPIC)
    if data_plane == "pulsar":
        return f"persistent://{local}-{subscription}-DLQ"
    if data_plane == "embedded":
        return f"dead-letters://{local}/{subscription}"
    raise Unsupported(f"{topic} is on data plane {data_plane!r}, where there are no dead-letter logs")
