"""Where a client learns what the topic looks like now: the protocol, and the snapshots it gives.

`PostgresSource` reads the rows; another source may ask over REST. A snapshot is of one moment, and holds what its reader
needs: a producer the ACTIVE segments, a subscription what it has still to read as well. So it is no larger for a topic that
was reshaped ten thousand times. A watcher that is told of a change asks for a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from controller.domain.layout import SegmentLayout


@dataclass(frozen=True, slots=True)
class TopicSnapshot:
    """The ACTIVE segments of a topic and the log behind each. `topic_id` is never used for another topic."""

    topic_id: int
    name: str
    data_plane: str
    layout: SegmentLayout
    backing_topics: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class SubscriptionSnapshot:
    """Who reads for a subscription, and what there is to read.

    `layout` holds the ACTIVE segments, the sealed ones that the subscription has not read to their end, and whatever descends
    from these; `drained` those of them that it has. A segment that is not there is read to its end or pruned.
    """

    consumers: frozenset[str]
    drained: frozenset[int]
    layout: SegmentLayout
    backing_topics: Mapping[int, str]


class Watch(Protocol):
    """A subscription to changes, until `close`."""

    def close(self) -> None:
        """Tell no more; safe to repeat."""


class LayoutSource(Protocol):
    """Safe to share between threads. Every call raises StoreUnavailable while the source is away."""

    def topic(self, name: str) -> TopicSnapshot:
        """The topic as it is now; TopicNotFound, or TopicNotLive while it is being created."""

    def watch(self, topic_id: int, on_change: Callable[[], None]) -> Watch:
        """Call back, from another thread, after every change of layout, consumers or drains, and after a gap.

        It may be called for nothing, and must not block.
        """

    def subscription(self, topic_id: int, subscription: str) -> SubscriptionSnapshot:
        """Its consumers and what it has to read now; SubscriptionNotFound."""

    def register(self, topic_id: int, subscription: str, consumer: str) -> None:
        """Make the consumer known, or known again. Raises as `ConsumerRegistration.demand`."""

    def unregister(self, topic_id: int, subscription: str, consumer: str) -> None:
        """Forget the consumer; an unknown one is success."""

    def mark_drained(self, topic_id: int, subscription: str, segment_id: int) -> None:
        """Note that the subscription has read a sealed segment to its end, and tell the watchers."""
