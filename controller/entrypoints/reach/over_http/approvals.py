"""Acts that wait for a person, asked of a server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from controller.entrypoints.reach import columns
from controller.entrypoints.reach.over_http.calls import API, Calls, chosen
from controller.entrypoints.reach.port import Row


@dataclass(frozen=True, slots=True)
class HttpApprovals:
    """See `port.Approvals`."""

    calls: Calls

    def list(self, *, topic: str | None, pending_only: bool, limit: int) -> Sequence[Row]:
        """See `port.Approvals`."""
        state = "pending" if pending_only else None
        rows = self.calls.every(f"{API}/approvals", limit=limit, topic=topic, state=state)
        return [chosen(row, columns.APPROVAL) for row in rows]
