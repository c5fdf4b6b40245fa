"""Layouts over HTTP, for applications that hold no login to Cleave's database."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from controller.client.arguments import checks_arguments
from controller.client.event_watch import EventWatch
from controller.client.layout_source import TopicSnapshot
from controller.client.servers import Servers, topic_path
from controller.client.suspects import SuspectReports
from controller.domain.hash_range import HashRange
from controller.domain.layout import SegmentLayout
from controller.domain.segment import Segment, SegmentState


@checks_arguments
class HttpSource:
    """A `LayoutSource` on Cleave's workers."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._names: dict[int, str] = {}

    def topic(self, name: str) -> TopicSnapshot:
        """The topic as it is now."""
        document = self._servers.ask("GET", f"{topic_path(name)}/layout")
        snapshot = _snapshot(document)
        self._names[snapshot.topic_id] = name
        return snapshot

    def watch(self, topic_id: int, on_change: Callable[[], None]) -> EventWatch:
        """Call back after every change, from a thread of the watch's own. The topic was looked up here before."""
        path = f"{topic_path(self._names[topic_id])}/layout/watch"
        # A refusal is a change: the owner's next look says which.
        return EventWatch(self._servers, path, lambda _event, _data: on_change(), on_refusal=on_change)

    def suspects(self, topic: str) -> SuspectReports:
        """See `TakesSuspects`."""
        return SuspectReports(self._servers, topic)

    def hand_in(self, topic: str, producer: str, counts: Sequence[tuple[int, int, int]]) -> None:
        """See `TakesKeyCounts`; any worker takes them."""
        document = {"producer": producer, "counts": counts}
        self._servers.ask("POST", f"{topic_path(topic)}/key-counts", document=document)


def _snapshot(document: Mapping[str, Any]) -> TopicSnapshot:
    segments = document["segments"]
    layout = SegmentLayout.from_segments(
        document["epoch"],
        document["next_segment_id"],
        (
            Segment(
                segment_id=one["segment_id"],
                hash_range=HashRange(one["range_start"], one["range_end"]),
                state=SegmentState.ACTIVE,
                parent_ids=(),
                created_epoch=one["created_epoch"],
                sealed_epoch=None,
                created_at_ms=one["created_at_ms"],
                sealed_at_ms=None,
                bucket_splits=tuple(one["bucket_splits"]),
            )
            for one in segments
        ),
    )
    return TopicSnapshot(
        document["topic_id"],
        document["topic"],
        document["data_plane"],
        layout,
        {one["segment_id"]: one["backing_topic"] for one in segments},
    )
