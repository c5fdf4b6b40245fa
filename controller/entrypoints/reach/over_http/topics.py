"""Topics and layouts, asked of a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime

from controller.client.servers import topic_path
from controller.domain.layout import SegmentLayout
from controller.entrypoints.adoption_desk import Adoption, PlannedAdoption
from controller.entrypoints.reach.columns import HOT_KEY, TOPIC
from controller.entrypoints.reach.over_http.calls import API, Calls, chosen, told
from controller.entrypoints.reach.port import Changed, FoundTopic, How, Row


@dataclass(frozen=True, slots=True)
class HttpTopics:
    """See `port.Topics`."""

    calls: Calls

    def list(self, *, namespace: str | None, prefix: str, limit: int) -> Sequence[Row]:
        """See `port.Topics`."""
        rows = self.calls.every(f"{API}/topics", limit=limit, namespace=namespace, prefix=prefix or None)
        return [chosen(row, TOPIC) for row in rows]

    def namespaces(self, *, prefix: str, limit: int) -> Sequence[Row]:
        """See `port.Topics`."""
        return self.calls.every(f"{API}/namespaces", limit=limit, prefix=prefix or None)

    def hot_keys(self, topic: str) -> Sequence[Row]:
        """See `port.Topics`."""
        return [chosen(row, HOT_KEY) for row in self.calls.every(f"{topic_path(topic)}/hot-keys")]

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

    def create(
        self, topic: str, how: How, *, segments: int, data_plane: str, properties: Mapping[str, str]
    ) -> Changed:
        """See `port.Topics`."""
        new = {"segments": segments, "data_plane": data_plane, "properties": dict(properties)}
        return self.calls.intend("PUT", topic_path(topic), how, new)

    def delete(self, topic: str, how: How) -> Changed:
        """See `port.Topics`."""
        return self.calls.intend("DELETE", topic_path(topic), how)

    def adopt(self, asked: Adoption, how: How) -> tuple[Changed, PlannedAdoption | None]:
        """See `port.Topics`."""
        said = {
            "old": asked.old,
            "segments": asked.segments,
            "data_plane": asked.data_plane,
            "cut_off": asked.cut_off,
        }
        changed, answer = self.calls.intend_and_tell("POST", f"{topic_path(asked.topic)}/adopt", how, said)
        if not how.dry_run:
            return changed, None
        found = told(answer, "found")
        return changed, PlannedAdoption(
            **{one.name: told(found, one.name) for one in fields(PlannedAdoption)}
        )

    def attach(self, topic: str, how: How, *, data_plane: str) -> tuple[Changed, Sequence[Row] | None]:
        """See `port.Topics`."""
        path, said = f"{topic_path(topic)}/attach", {"data_plane": data_plane}
        changed, answer = self.calls.intend_and_tell("POST", path, how, said)
        return changed, told(answer, "on_broker") if how.dry_run else None

    def detach(self, topic: str, how: How) -> Changed:
        """See `port.Topics`."""
        return self.calls.intend("POST", f"{topic_path(topic)}/detach", how)

    def recover(self, topic: str, *, data_plane: str | None, dry_run: bool) -> Row:
        """Implements `port.Topics.recover`."""
        answer = self.calls.change(
            "POST", f"{topic_path(topic)}/recover", {"data_plane": data_plane}, dry_run
        )
        return {name: told(answer, name) for name in ("topic", "epoch", "held_reason", "findings")}
