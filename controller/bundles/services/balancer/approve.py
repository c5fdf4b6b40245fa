"""A person's answer to proposals: consent, or a refusal with its reason. What is approved is carried out by `apply`."""

from __future__ import annotations

from collections.abc import Sequence

from controller.bundles.store import proposals as bundle_proposals
from controller.bundles.store.proposals import ProposalRow
from controller.store.postgres.engine import Store


def approve(
    store: Store, proposal_ids: Sequence[int], *, refuse: str | None, actor: str
) -> list[ProposalRow]:
    """Approve proposals, or refuse them for the reason `refuse`; all or none.

    Raises NotFound; LostRace for one that changed meanwhile; InvalidInput in dry run or where it is too late; Conflict
    while another act on the bundle is under way; StoreUnavailable.
    """
    rows = []
    with store.transaction() as tx:
        for proposal_id in proposal_ids:
            seen = bundle_proposals.get_proposal(tx, proposal_id).row_version
            if refuse is None:
                row = bundle_proposals.approve(tx, proposal_id, actor=actor, seen_row_version=seen)
            else:
                row = bundle_proposals.refuse(tx, proposal_id, refuse, actor=actor, seen_row_version=seen)
            rows.append(row)
    return rows
