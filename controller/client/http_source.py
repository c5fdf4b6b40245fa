"""Layouts over HTTP, for applications that hold no login to Cleave's database."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from controller.client.layout_source import TopicSnapshot
from controller.client.patience import Backoff
from controller.client.servers import EventFeed, Servers, topic_path
from controller.domain.errors import Retryable, Terminal
from controller.domain.hash_range import HashRange
from controller.domain.layout import SegmentLayout
from controller.domain.segment import Segment, SegmentState

SILENT_SECONDS = 30.0
"""A watch that has said nothing for so long is opened anew; heartbeats come more often."""
_FIRST_RETRY_SECONDS, _LONGEST_RETRY_SECONDS = 0.1, 5.0
_log = logging.getLogger(__name__)


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

    def watch(self, topic_id: int, on_change: Callable[[], None]) -> HttpWatch:
        """Call back after every change, from a thread of the watch's own. The topic was looked up here before."""
        return HttpWatch(self._servers, self._names[topic_id], on_change)


class HttpWatch:
    """One stream of layout changes, opened again whenever it breaks."""

    def __init__(self, servers: Servers, topic: str, on_change: Callable[[], None]) -> None:
        self._servers, self._path, self._on_change = servers, f"{topic_path(topic)}/layout/watch", on_change
        self._closed = threading.Event()
        self._feed: EventFeed | None = None
        self._thread = threading.Thread(target=self._run, name="cleave-layout-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Tell no more."""
        self._closed.set()
        if self._feed is not None:
            self._feed.hang_up()
        self._thread.join()

    def _run(self) -> None:
        backoff = Backoff(_FIRST_RETRY_SECONDS, _LONGEST_RETRY_SECONDS)
        while not self._closed.is_set():
            try:
                self._follow(backoff)
            except Retryable:
                pass
            except Terminal:
                self._on_change()  # the owner's next look says so
            except Exception:  # noqa: BLE001 - the thread would end, and no change would be told any more
                _log.exception("the watch of %s failed; opening it anew", self._path)
            self._closed.wait(backoff.next_seconds())

    def _follow(self, backoff: Backoff) -> None:
        """Hold one stream open until it ends."""
        with self._servers.events(self._path, query={}, silent_seconds=SILENT_SECONDS) as feed:
            self._feed = feed
            for event in feed:
                backoff.reset()
                if self._closed.is_set() or event.event == "end":
                    return
                if event.event == "layout":
                    self._on_change()


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
