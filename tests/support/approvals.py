"""What waits for a person, as tests read it."""

from __future__ import annotations

from controller.services import approvals
from controller.store.decisions.approvals import ApprovalRow
from controller.store.postgres import inspection
from controller.store.postgres.engine import Store


def pending(store: Store) -> list[ApprovalRow]:
    """What waits, newest first."""
    with store.transaction() as tx:
        ids = inspection.rows(
            tx, "SELECT approval_id FROM inspect.approvals WHERE state = 'pending' ORDER BY 1 DESC"
        )
    return [approvals.find(store, row["approval_id"]) for row in ids]
