"""The ledger, asked of a server, and topics as they would be decided on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from controller.client.servers import topic_path
from controller.domain.situation import Situation
from controller.entrypoints.reach.columns import DECISION, INPUTS, LEFT_ALONE
from controller.entrypoints.reach.over_http.calls import API, Calls, chosen, told, with_instants
from controller.entrypoints.reach.port import Row

_PAGE = 200
"""Decisions asked for at once: each has its whole situation, some 10 KB."""


@dataclass(frozen=True, slots=True)
class HttpDecisions:
    """See `port.Decisions`."""

    calls: Calls

    def list(self, *, topic: str | None, limit: int) -> Sequence[Row]:
        """See `port.Decisions`."""
        rows = self.calls.pages(f"{API}/ledger", limit=limit, size=_PAGE, topic=topic)
        return [chosen(row, DECISION) for row in rows]

    def left_alone(self, *, topic: str | None, limit: int) -> Sequence[Row]:
        """See `port.Decisions`."""
        rows = self.calls.every(f"{API}/refusals", limit=limit, topic=topic)
        return [chosen(row, LEFT_ALONE) for row in rows]

    def inputs(self, decision_id: int) -> Row:
        """See `port.Decisions`."""
        return chosen(with_instants(self.calls.get(f"{API}/decisions/{decision_id}/inputs")), INPUTS)

    def ledger(self, topic: str, since: datetime, until: datetime) -> Iterator[Row]:
        """See `port.Decisions`."""
        span: dict[str, Any] = {"from": since.isoformat(), "to": until.isoformat()}
        for row in self.calls.pages(f"{topic_path(topic)}/decisions/inputs", size=_PAGE, **span):
            yield chosen(row, INPUTS)

    def situations(self, topic: str, changes: Mapping[str, Any]) -> tuple[Situation, Situation]:
        """See `port.Decisions`."""
        found = self.calls.look(f"{topic_path(topic)}/situations", {"changes": dict(changes)})
        now, then = (Situation.from_json(told(found, name)) for name in ("in_force", "what_if"))
        return now, then
