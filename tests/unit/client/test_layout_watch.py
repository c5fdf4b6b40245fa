"""Following the layout of a topic whose name another topic gets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest

from controller.client.layout_source import TopicSnapshot
from controller.client.layout_watch import LayoutWatch
from controller.domain.errors import TopicNotFound
from controller.domain.layout import SegmentLayout

NAME = "topic://acme/shop/orders"


class Source:
    """One topic name."""

    def __init__(self) -> None:
        self.snapshot = TopicSnapshot(1, NAME, SegmentLayout.from_segments(1, 1, ()), {})

    def topic(self, _name: str) -> TopicSnapshot:
        """As `LayoutSource.topic`."""
        return self.snapshot

    def watch(self, _topic_id: int, _on_change: Callable[[], None]) -> SimpleNamespace:
        """As `LayoutSource.watch`, without a change."""
        return SimpleNamespace(close=lambda: None)


def test_each_read_says_that_another_topic_has_the_name() -> None:
    """A producer that was told so once would send what follows to the logs of the deleted topic."""
    source = Source()
    watch = LayoutWatch(source, NAME)
    assert watch.refresh_if_changed()
    source.snapshot = replace(source.snapshot, topic_id=2)
    watch.look_again()

    for _ in range(2):
        with pytest.raises(TopicNotFound, match="deleted and created again"):
            watch.refresh_if_changed()
    assert watch.snapshot.topic_id == 1
