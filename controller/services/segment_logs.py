"""The log behind one segment, named by its descriptor (`0000-7fff-12`), for whoever speaks Pulsar's API of segments.

Layout and cursors belong to the journal, so what changes these is asked of it elsewhere: a log is closed by replacing its segment
(`segment_admin`), deleted by pruning it (`garbage_collector`). Here is what is left: to see that a log and its cursors are there, and
how much is unread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controller.dataplane.base import DataPlane
from controller.dataplane.layout_keeper import LayoutKeeper
from controller.dataplane.registry import configured
from controller.domain.errors import Conflict, SegmentNotFound, SubscriptionNotFound, Unsupported
from controller.domain.log_origin import LogOrigin
from controller.domain.segment import Segment, SegmentState, parse_segment_descriptor
from controller.store.postgres.engine import Store
from controller.store.topics import backing_logs, subscriptions
from controller.store.topics.published import published_segments
from controller.store.topics.subscriptions import SubscriptionState


@dataclass(frozen=True, slots=True)
class SegmentLog:
    """A segment that is not pruned, its log, and the subscriptions that its topic has."""

    topic: str
    segment: Segment
    backing_topic: str
    plane: DataPlane
    subscriptions: frozenset[str]
    origin: LogOrigin | None
    """Creation record to store with the log if it has to be created once more."""

    @property
    def is_sealed(self) -> bool:
        """Whether nothing is appended any more."""
        return self.segment.state is SegmentState.SEALED

    def see_to(self, names: Sequence[str]) -> None:
        """See that the log is there with the topic's subscriptions and with these, which must be the topic's.

        Raises SubscriptionNotFound, Conflict for a sealed segment, and as the data plane does.
        """
        self._demand(names)
        if self.is_sealed:
            raise Conflict(
                f"segment {self.segment.segment_id} of {self.topic} is sealed; nothing is made there any more"
            )
        self.plane.create_segment(self.backing_topic, sorted(self.subscriptions), self.origin)

    def demand_none(self, name: str) -> None:
        """Raises Conflict while the topic has the subscription: its segments have a cursor each."""
        if name in self.subscriptions:
            raise Conflict(
                f"subscription {name} is the topic's, and no segment goes without it; delete it from {self.topic}"
            )

    def backlog(self, name: str) -> int:
        """Unread messages. Raises SubscriptionNotFound, and as the data plane does."""
        found = self.plane.backlog(self.backing_topic, name)
        if found is None:
            raise SubscriptionNotFound(
                f"segment {self.segment.segment_id} of {self.topic} has no subscription {name}; create it on the topic"
            )
        return found

    def _demand(self, names: Sequence[str]) -> None:
        for name in names:
            if name not in self.subscriptions:
                raise SubscriptionNotFound(
                    f"{self.topic} has no subscription {name}; create it on the topic, and every segment has it"
                )


def find(store: Store, planes: Mapping[str, DataPlane], topic: str, descriptor: str) -> SegmentLog:
    """The segment of that descriptor. Raises InvalidInput for none, TopicNotFound, SegmentNotFound for one that is not in the
    layout, Unsupported where a broker keeps the layout.
    """
    hash_range, segment_id = parse_segment_descriptor(descriptor)
    with store.transaction() as tx:
        found = published_segments(tx, topic)
        listed = subscriptions.list_subscriptions(tx, found.topic_id)
        origins = backing_logs.origins(tx, found.backing_topics.values())
    segment = found.layout.segments.get(segment_id)
    if segment is None or segment.hash_range != hash_range:
        raise SegmentNotFound(
            f"topic {topic} has no segment {descriptor}; segments are made by splitting and merging, not one by one"
        )
    plane = configured(planes, found.data_plane, topic)
    if isinstance(plane, LayoutKeeper):
        raise Unsupported(f"the broker keeps the segments of {topic}; ask there, with its own admin client")
    names = frozenset(one.name for one in listed if one.state is SubscriptionState.LIVE)
    log = found.backing_topics[segment_id]
    return SegmentLog(topic, segment, log, plane, names, origins.get(log))
