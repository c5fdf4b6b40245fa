"""Acts that wait for a person, asked of a server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from controller.client.servers import topic_path
from controller.entrypoints.reach import columns
from controller.entrypoints.reach.over_http.calls import API, Calls, chosen, told, with_instants
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

    def answer(self, approval_id: int, *, approve: bool, reason: str, dry_run: bool) -> Row:
        """See `port.Approvals`."""
        topic = told(self.calls.get(f"{API}/approvals/{approval_id}"), "topic")
        path = f"{topic_path(topic)}/approvals/{approval_id}/answer"
        found = self.calls.change("POST", path, {"approve": approve, "reason": reason}, dry_run)
        return chosen(with_instants(told(found, "approval")), columns.APPROVAL)
