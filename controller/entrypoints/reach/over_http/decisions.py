"""The ledger, asked of a server, and topics as they would be decided on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from controller.client.servers import topic_path
from controller.domain.situation import Situation
from controller.entrypoints.reach.over_http.calls import Calls, told


@dataclass(frozen=True, slots=True)
class HttpDecisions:
    """See `port.Decisions`."""

    calls: Calls

    def situations(self, topic: str, changes: Mapping[str, Any]) -> tuple[Situation, Situation]:
        """See `port.Decisions`."""
        found = self.calls.look(f"{topic_path(topic)}/situations", {"changes": dict(changes)})
        now, then = (Situation.from_json(told(found, name)) for name in ("in_force", "what_if"))
        return now, then
