"""Subscriptions and who reads them, asked of a server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from controller.client.servers import topic_path
from controller.entrypoints.reach.columns import SUBSCRIPTION
from controller.entrypoints.reach.over_http.calls import (
    Calls,
    chosen,
)
from controller.entrypoints.reach.port import Row


@dataclass(frozen=True, slots=True)
class HttpSubscriptions:
    """See `port.Subscriptions`."""

    calls: Calls

    def list(self, topic: str) -> Sequence[Row]:
        """See `port.Subscriptions`."""
        return [chosen(row, SUBSCRIPTION) for row in self.calls.every(f"{topic_path(topic)}/subscriptions")]
