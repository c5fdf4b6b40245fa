"""The fleet and topics at a glance, asked of a server."""

from __future__ import annotations

from dataclasses import dataclass

from controller.client.servers import topic_path
from controller.entrypoints.reach.over_http.calls import API, Calls, told, with_instants
from controller.entrypoints.reach.port import Row

_LISTS = ("segments", "operations", "refusals", "subscriptions")


@dataclass(frozen=True, slots=True)
class HttpPictures:
    """See `port.Pictures`."""

    calls: Calls

    def fleet(self, find: str, limit: int) -> Row:
        """See `port.Pictures`."""
        found = self.calls.get(f"{API}/fleet", find=find or None, limit=limit)
        topics, health = told(found, "topics"), told(found, "health")
        return with_instants(found) | {
            "health": with_instants(health),
            "topics": [*map(with_instants, topics)],
        }

    def topic(self, name: str) -> Row:
        """See `port.Pictures`."""
        found = self.calls.get(f"{topic_path(name)}/overview")
        lists = {one: [*map(with_instants, told(found, one))] for one in _LISTS}
        return with_instants(found) | {"topic": with_instants(told(found, "topic")), **lists}
