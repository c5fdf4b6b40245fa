"""A layout source with a topic of one segment, for clients that need no server."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

from controller.client.layout_source import TopicSnapshot
from controller.domain.hash_range import FULL_RANGE
from controller.domain.layout import SegmentLayout
from controller.domain.segment import Segment


class OneSegment:
    """A topic with one segment, which never changes."""

    def topic(self, name: str) -> TopicSnapshot:
        """As `LayoutSource.topic`."""
        segment = Segment(0, FULL_RANGE)
        return TopicSnapshot(1, name, SegmentLayout.from_segments(1, 1, (segment,)), {0: "log_0"})

    def watch(self, _topic_id: int, _on_change: Callable[[], None]) -> SimpleNamespace:
        """As `LayoutSource.watch`, without a change."""
        return SimpleNamespace(close=lambda: None)
