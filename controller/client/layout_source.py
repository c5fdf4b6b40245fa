"""Where a client learns what the topic looks like now: the protocol, and the snapshots it gives.

`PostgresSource` reads the rows, `HttpSource` asks the workers. A snapshot is of one moment and holds the ACTIVE segments, so it is
no larger for a topic that was reshaped ten thousand times. A watcher that is told of a change asks for a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from controller.domain.layout import SegmentLayout

if TYPE_CHECKING:  # it loads what calls workers over HTTP
    from controller.client.suspects import SuspectReports


@dataclass(frozen=True, slots=True)
class TopicSnapshot:
    """The ACTIVE segments of a topic and the log behind each. `topic_id` is never used for another topic."""

    topic_id: int
    name: str
    data_plane: str
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
        """Call back, from another thread, after every change of layout, and after a gap.

        It may be called for nothing, and must not block.
        """


@runtime_checkable
class TakesSuspects(Protocol):
    """A source that hands on which segments a producer found without a log that takes its messages."""

    def suspects(self, topic: str) -> SuspectReports:
        """Return where to report segments of the topic; the caller closes it."""


@runtime_checkable
class TakesKeyCounts(Protocol):
    """A source that hands on what a producer counted of its keys."""

    def hand_in(self, topic: str, producer: str, counts: Sequence[tuple[int, int, int]]) -> None:
        """First hash, how many hashes, messages; since the last time. Raises StoreUnavailable, and what a worker refuses it with."""
