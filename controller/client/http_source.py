"""Reads layouts over HTTP, for applications without access to Cleave's database."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from controller.client.arguments import checks_arguments
from controller.client.broken_log_reports import SuspectReports
from controller.client.event_watch import EventWatch
from controller.client.layout_source import TopicSnapshot
from controller.client.servers import Servers, topic_path
from controller.domain.hash_range import HashRange
from controller.domain.layout import SegmentLayout
from controller.domain.segment import Segment, SegmentState


@checks_arguments
class HttpSource:
    """A `LayoutSource` that queries Cleave's workers."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._names: dict[int, str] = {}

    def topic(self, name: str) -> TopicSnapshot:
        """Request the present snapshot of the topic from a worker, and return it. The snapshot contains only the
        ACTIVE segments. Afterwards `watch` accepts the id of the topic.

        Raises InvalidInput for a name that does not have the form `topic://tenant/namespace/name`; TopicNotFound;
        TopicNotLive while the topic is being created; StoreUnavailable if no worker answers, or the workers cannot
        reach the database; and the other errors of `Servers.ask`.
        """
        document = self._servers.ask("GET", f"{topic_path(name)}/layout")
        snapshot = _snapshot(document)
        self._names[snapshot.topic_id] = name
        return snapshot

    def watch(self, topic_id: int, on_change: Callable[[], None]) -> EventWatch:
        """Open a stream of changes until the returned watch is closed. `on_change` is called in the stream's
        thread after every change, each time the stream was opened, and when a worker refuses the stream.
        `topic` must have read the topic before, otherwise KeyError is raised.
        """
        path = f"{topic_path(self._names[topic_id])}/layout/watch"
        # A refusal counts as a change, because the owner's next read of the topic returns its reason.
        return EventWatch(self._servers, path, lambda _event, _data: on_change(), on_refusal=on_change)

    def suspects(self, topic: str) -> SuspectReports:
        """Return an object that reports segments of the topic whose log is missing or closed. The caller
        closes the object.
        """
        return SuspectReports(self._servers, topic)

    def hand_in(self, topic: str, producer: str, counts: Sequence[tuple[int, int, int]]) -> None:
        """Send the message counts of a producer since the last call to any worker. Each count has first hash,
        number of hashes and number of messages.

        Raises StoreUnavailable, or the worker's refusal.
        """
        document = {"producer": producer, "counts": counts}
        self._servers.ask("POST", f"{topic_path(topic)}/key-counts", document=document)


def _snapshot(document: Mapping[str, Any]) -> TopicSnapshot:
    """Return the snapshot that `document`, the JSON of a worker's response, describes. All its segments are ACTIVE,
    and their parents are left out. Raises KeyError for a missing field, and the errors of `HashRange` and
    `SegmentLayout.from_segments` for invalid values.
    """
    segments = document["segments"]
    layout = SegmentLayout.from_segments(
        document["epoch"],
        document["next_segment_id"],
        (
            Segment(
                segment_id=row["segment_id"],
                hash_range=HashRange(row["range_start"], row["range_end"]),
                state=SegmentState.ACTIVE,
                parent_ids=(),
                created_epoch=row["created_epoch"],
                sealed_epoch=None,
                created_at_ms=row["created_at_ms"],
                sealed_at_ms=None,
                bucket_splits=tuple(row["bucket_splits"]),
            )
            for row in segments
        ),
    )
    return TopicSnapshot(
        document["topic_id"],
        document["topic"],
        layout,
        {row["segment_id"]: row["backing_topic"] for row in segments},
    )
