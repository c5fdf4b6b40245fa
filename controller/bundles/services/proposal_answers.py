"""Applies the answer of an approval to a proposal of the balancer: an approved proposal is applied by `apply`, a rejected one refused."""

from __future__ import annotations

from sqlalchemy import Connection

from controller.bundles.store import proposals as bundle_proposals
from controller.bundles.store.proposals import STALE_AFTER_SECONDS, ProposalState
from controller.domain.approval_states import ApprovalState
from controller.domain.errors import Conflict
from controller.store.approvals import ApprovalRow


def lock(tx: Connection, row: ApprovalRow) -> None:
    """Lock the proposal of the approval until the transaction ends. Raises NotFound if the proposal was deleted."""
    bundle_proposals.get_proposal(tx, row.subject_id, lock=True)


def carry_out(tx: Connection, row: ApprovalRow) -> None:
    """Set the proposal of the answered approval to approved, or to refused if the answer is anything but approved, and store who answered.
    A refusal stores its outcome and ends the approval, unless the approval has ended. Does not apply the proposal.

    The caller holds the lock of `lock`. Raises NotFound if the proposal was deleted; InvalidInput for an approval if the namespace is now
    in dry run or not known, for a refusal without an outcome, and if the state may not follow the proposal's present state (the proposal
    was applied or has ended); Conflict for an approval of a stale proposal, or while another proposal of the namespace with the same lower
    bound is approved or applied.
    """
    is_approved = row.state is ApprovalState.APPROVED
    proposal = bundle_proposals.get_proposal(tx, row.subject_id)
    if is_approved and proposal.is_stale:
        raise Conflict(
            f"proposal {row.subject_id} has waited longer than {STALE_AFTER_SECONDS / 60:g} minutes, and the load has changed since; propose "
            "again"
        )
    bundle_proposals.move(
        tx,
        row.subject_id,
        ProposalState.APPROVED if is_approved else ProposalState.REFUSED,
        actor=row.answered_by or "",
        outcome=None if is_approved else row.outcome,
        seen_row_version=proposal.row_version,
    )
