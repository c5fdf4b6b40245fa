"""Topics and layouts, read and changed in the database."""

from __future__ import annotations

from datetime import datetime

from controller.domain.layout import SegmentLayout
from controller.entrypoints.reach.port import FoundTopic
from controller.entrypoints.reading import reading
from controller.store.topics import inspected


class DirectTopics:
    """See `port.Topics`."""

    def find(self, topic: str) -> FoundTopic:
        """See `port.Topics`."""
        with reading() as tx:
            row = inspected.find_topic(tx, topic)
            layout = inspected.load_layout(tx, row)
        return FoundTopic(row.name, row.state, row.data_plane, row.properties, layout)

    def layout(self, topic: str, at: int | datetime | None) -> SegmentLayout:
        """See `port.Topics`."""
        with reading() as tx:
            row = inspected.find_topic(tx, topic)
            return inspected.load_layout(tx, row) if at is None else inspected.layout_at(tx, row, at)
