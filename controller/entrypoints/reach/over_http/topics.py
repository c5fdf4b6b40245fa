"""Topics and layouts, asked of a server."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from controller.client.servers import topic_path
from controller.domain.layout import SegmentLayout
from controller.entrypoints.reach.over_http.calls import Calls
from controller.entrypoints.reach.port import FoundTopic


@dataclass(frozen=True, slots=True)
class HttpTopics:
    """See `port.Topics`."""

    calls: Calls

    def find(self, topic: str) -> FoundTopic:
        """See `port.Topics`."""
        found = self.calls.get(topic_path(topic))
        return FoundTopic(
            found["topic"], found["state"], found["data_plane"], found["properties"], self.layout(topic, None)
        )

    def layout(self, topic: str, at: int | datetime | None) -> SegmentLayout:
        """See `port.Topics`."""
        asked = at.isoformat() if isinstance(at, datetime) else at
        return SegmentLayout.from_metadata(self.calls.get(f"{topic_path(topic)}/layout/metadata", at=asked))
