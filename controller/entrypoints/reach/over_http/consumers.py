"""Who consumes a topic and what nobody gets, asked of a server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from controller.client.servers import path_part, topic_path
from controller.entrypoints.reach.over_http.calls import Calls
from controller.entrypoints.reach.port import Row


@dataclass(frozen=True, slots=True)
class HttpConsumers:
    """See `port.Consumers`."""

    calls: Calls

    def lag(self, topic: str, subscription: str) -> Sequence[Row]:
        """See `port.Consumers`."""
        found: list[Row] = self.calls.get(f"{topic_path(topic)}/subscriptions/{path_part(subscription)}/lag")
        return found
