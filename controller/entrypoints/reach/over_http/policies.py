"""Policies, asked of a server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from controller.client.servers import topic_path
from controller.entrypoints.reach.over_http.calls import API, Calls, level_path, told
from controller.entrypoints.reach.port import Row


@dataclass(frozen=True, slots=True)
class HttpPolicies:
    """See `port.Policies`."""

    calls: Calls

    def stored(self, level: str) -> Row:
        """See `port.Policies`."""
        return dict(told(self.calls.get(f"{API}/policies/{level_path(level)}"), "knobs"))

    def in_force(self, topic: str) -> Sequence[Row]:
        """See `port.Policies`."""
        return list(told(self.calls.get(f"{topic_path(topic)}/policy"), "knobs"))
