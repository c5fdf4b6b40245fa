"""The log of one segment, named by its descriptor (`0000-7fff-12`), for clients of Pulsar's segment API.

Layout and cursors belong to the journal, so requests to change them are made elsewhere: a log is terminated
by replacing its segment (`segment_admin`), and deleted by pruning the segment (`garbage_collector`). This
module ensures that a log and its cursors exist, and counts unacknowledged messages.
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
from controller.store.topics.published_layout import published_segments
from controller.store.topics.subscriptions import SubscriptionState


@dataclass(frozen=True, slots=True)
class SegmentLog:
    """A segment that is not pruned, its log, and the live subscriptions of its topic."""

    topic: str
    segment: Segment
    backing_topic: str
    plane: DataPlane
    subscriptions: frozenset[str]
    origin: LogOrigin | None
    """Creation record to store with the log if the log must be created again."""

    @property
    def is_sealed(self) -> bool:
        """True if the segment accepts no more appends."""
        return self.segment.state is SegmentState.SEALED

    def ensure_exists(self, names: Sequence[str]) -> None:
        """Create the log of the active segment if the log does not exist, and the missing cursors of all live
        subscriptions of the topic, at the earliest message. Existing cursors do not move. `names` is only checked:
        each name must be a live subscription of the topic, as read by `find`. The cursors that are created do not
        depend on `names`. Raises SubscriptionNotFound for a name that is not, Conflict for a sealed segment, and the
        errors of the data plane.
        """
        self._demand(names)
        if self.is_sealed:
            raise Conflict(
                f"segment {self.segment.segment_id} of {self.topic} is sealed, so its log cannot be created; use an active segment"
            )
        self.plane.create_segment(self.backing_topic, sorted(self.subscriptions), self.origin)

    def demand_none(self, name: str) -> None:
        """Raise Conflict if the topic has the subscription, because each of its segments needs the cursor."""
        if name in self.subscriptions:
            raise Conflict(
                f"subscription {name} belongs to the topic, so each segment has it; delete it from {self.topic}"
            )

    def backlog(self, name: str) -> int:
        """Return the number of messages in the segment that the subscription `name` has not acknowledged; a broker
        may estimate the number (`DataPlane.backlog`). The subscription need not be recorded in Cleave. Raises
        SubscriptionNotFound if the log or the cursor does not exist, and the errors of the data plane, such as
        DataPlaneUnavailable.
        """
        unread = self.plane.backlog(self.backing_topic, name)
        if unread is None:
            raise SubscriptionNotFound(
                f"segment {self.segment.segment_id} of {self.topic} has no subscription {name}; create it on the topic"
            )
        return unread

    def _demand(self, names: Sequence[str]) -> None:
        """Raise SubscriptionNotFound for a name that is no live subscription of the topic."""
        for name in names:
            if name not in self.subscriptions:
                raise SubscriptionNotFound(
                    f"{self.topic} has no subscription {name}; create it on the topic, and every segment has it"
                )


def find(store: Store, planes: Mapping[str, DataPlane], topic: str, descriptor: str) -> SegmentLog:
    """Return the segment with the descriptor, such as `0000-7fff-12`, with its log, its data plane and the live
    subscriptions of its topic. The topic is live or being deleted; the segment is active or sealed, but not pruned.
    The log itself need not exist, and no call is made. Raises InvalidInput for a descriptor of another form;
    TopicNotFound; TopicNotLive while the topic is being created; SegmentNotFound if the layout has no segment with
    this id and range; Unsupported if a broker keeps the layout or the data plane is not configured here; and the
    errors of `Store.transaction`.
    """
    hash_range, segment_id = parse_segment_descriptor(descriptor)
    with store.transaction() as tx:
        published = published_segments(tx, topic)
        rows = subscriptions.list_subscriptions(tx, published.topic_id)
        origins = backing_logs.origins(tx, published.backing_topics.values())
    segment = published.layout.segments.get(segment_id)
    if segment is None or segment.hash_range != hash_range:
        raise SegmentNotFound(
            f"topic {topic} has no segment {descriptor}; create segments by splitting and merging"
        )
    plane = configured(planes, published.data_plane, topic)
    if isinstance(plane, LayoutKeeper):
        raise Unsupported(f"the broker keeps the segments of {topic}; use the broker's own admin client")
    names = frozenset(row.name for row in rows if row.state is SubscriptionState.LIVE)
    log = published.backing_topics[segment_id]
    return SegmentLog(topic, segment, log, plane, names, origins.get(log))
