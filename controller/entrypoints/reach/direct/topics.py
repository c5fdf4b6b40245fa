"""Topics and layouts, read and changed in the database."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from controller.domain.layout import SegmentLayout
from controller.entrypoints.pictures import HOT_KEYS
from controller.entrypoints.reach.columns import TOPIC
from controller.entrypoints.reach.port import FoundTopic, Row
from controller.entrypoints.reading import reading
from controller.store.postgres import inspection
from controller.store.topics import inspected

LIST = f"""
    SELECT {", ".join(TOPIC)} FROM inspect.topics
     WHERE state <> 'deleted' AND starts_with(topic, :prefix) AND (CAST(:namespace AS text) IS NULL OR namespace = :namespace)
     ORDER BY topic LIMIT :limit
"""  # noqa: S608 - constants only
_NAMESPACES = """
    SELECT DISTINCT namespace FROM inspect.topics
     WHERE state <> 'deleted' AND starts_with(namespace, :prefix) ORDER BY namespace LIMIT :limit
"""
_HOT_KEYS = f"{HOT_KEYS} ORDER BY segment_id"


class DirectTopics:
    """See `port.Topics`."""

    def list(self, *, namespace: str | None, prefix: str, limit: int) -> Sequence[Row]:
        """See `port.Topics`."""
        with reading() as tx:
            return inspection.rows(tx, LIST, namespace=namespace, prefix=prefix, limit=limit)

    def namespaces(self, *, prefix: str, limit: int) -> Sequence[Row]:
        """See `port.Topics`."""
        with reading() as tx:
            return inspection.rows(tx, _NAMESPACES, prefix=prefix, limit=limit)

    def hot_keys(self, topic: str) -> Sequence[Row]:
        """See `port.Topics`."""
        with reading() as tx:
            return inspection.rows(tx, _HOT_KEYS, topic=inspected.find_topic(tx, topic).name)

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
