"""Acts that wait for a person, in the database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from controller.bootstrap import application
from controller.entrypoints.reach.port import Row
from controller.services import approvals
from controller.store.decisions.approvals import ApprovalRow


class DirectApprovals:
    """See `port.Approvals`."""

    def list(self, *, topic: str | None, pending_only: bool, limit: int) -> Sequence[Row]:
        """See `port.Approvals`."""
        with application() as cleave:
            rows = approvals.list_approvals(cleave.store, topic, pending_only=pending_only, limit=limit)
        return [_document(row) for row in rows]


def _document(row: ApprovalRow) -> Row:
    return asdict(row) | {"state": row.state.value, "segment_ids": list(row.segment_ids)}
