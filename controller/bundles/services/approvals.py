"""What an answer to an approval means for a proposal of the balancer: approved, `apply` carries it out; rejected, it is refused."""

from __future__ import annotations

from sqlalchemy import Connection

from controller.bundles.store import proposals as bundle_proposals
from controller.bundles.store.proposals import PATIENCE_SECONDS, ProposalState
from controller.domain.approvals import ApprovalState
from controller.domain.errors import Conflict
from controller.store.approvals import ApprovalRow


def lock(tx: Connection, row: ApprovalRow) -> None:
    """Lock the proposal. Raises NotFound."""
    bundle_proposals.get_proposal(tx, row.subject_id, lock=True)


def carry_out(tx: Connection, row: ApprovalRow) -> None:
    """Approve or refuse the proposal.

    Raises InvalidInput in dry run; Conflict for a proposal that is stale, and while another act on the bundle is under way.
    """
    is_approved = row.state is ApprovalState.APPROVED
    proposal = bundle_proposals.get_proposal(tx, row.subject_id)
    if is_approved and proposal.is_stale:
        raise Conflict(
            f"proposal {row.subject_id} has waited longer than {PATIENCE_SECONDS / 60:g} minutes, and the load has changed since: propose "
            "anew"
        )
    bundle_proposals.move(
        tx,
        row.subject_id,
        ProposalState.APPROVED if is_approved else ProposalState.REFUSED,
        actor=row.answered_by or "",
        outcome=None if is_approved else row.outcome,
        seen_row_version=proposal.row_version,
    )
