"""Defines how a client reads and watches the layout of a topic.

`PostgresSource` reads the rows, and `HttpSource` queries the workers. A snapshot shows one moment and
contains only ACTIVE segments, so it does not grow with the number of reshapes. A watcher is notified of
changes and then reads a new snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from controller.dataplane.log_client import Closable
from controller.domain.layout import SegmentLayout

if TYPE_CHECKING:  # this import loads the HTTP client
    from controller.client.broken_log_reports import SuspectReports


@dataclass(frozen=True, slots=True)
class TopicSnapshot:
    """The ACTIVE segments of a topic and the log behind each. `topic_id` is never used for another topic."""

    topic_id: int
    name: str
    layout: SegmentLayout
    backing_topics: Mapping[int, str]
    """Log of each ACTIVE segment, by segment id."""


class LayoutSource(Protocol):
    """A source of layouts. Safe to share between threads."""

    def topic(self, name: str) -> TopicSnapshot:
        """Return the present state of the topic. Raises TopicNotFound, TopicNotLive while the topic is being
        created, or StoreUnavailable while the source is out of reach.
        """

    def watch(self, topic_id: int, on_change: Callable[[], None]) -> Closable:
        """Begin to follow the layout, until the returned watch is closed (idempotent): call `on_change` from another
        thread after every change, and after a gap in the notifications. Does not wait for the source, and
        goes on after an outage.

        `on_change` may be called without a change, and must not block.
        """


@runtime_checkable
class ReportsToWorkers(Protocol):
    """A source that forwards a client's reports to Cleave's workers."""

    def suspects(self, topic: str) -> SuspectReports:
        """Return an object that reports segments of the topic whose log takes no messages. The caller closes the
        object.
        """

    def hand_in(self, topic: str, producer: str, counts: Sequence[tuple[int, int, int]]) -> None:
        """Send the message counts of the producer since the last call, each with first hash, number of
        hashes, number of messages. Raises StoreUnavailable, or the worker's refusal.
        """
