"""Claims on proposals of the balancer: one holder at a time, for a limited time.

A proposal is claimed before it is applied or verified. A change of the proposal's state (`proposals.move`) ends the claim, and `release`
changes the time of its end. After a claim has expired, any process may claim the proposal.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, text

from controller.bundles.store.proposals import (
    COLUMNS,
    STALE,
    ProposalKind,
    ProposalRow,
    ProposalState,
    read_proposal,
)
from controller.domain.errors import LostRace

_CLAIM = text(f"""
    UPDATE cleave.bundle_proposal
       SET claimed_by = :claimant, claimed_until = clock_timestamp() + make_interval(secs => :seconds),
           attempts = attempts + 1
     WHERE proposal_id IN (
           SELECT proposal_id FROM cleave.bundle_proposal
            WHERE cluster = :cluster AND state = :state AND kind = ANY (:kinds) AND proposal_id > :after
              AND (claimed_until IS NULL OR claimed_until < clock_timestamp())
              AND NOT {STALE}
              AND (state <> 'approved' OR (cluster, namespace) IN (
                   SELECT n.cluster, n.namespace FROM cleave.namespace_bundles n WHERE n.mode <> 'dry-run'))
            ORDER BY proposal_id LIMIT :limit FOR UPDATE SKIP LOCKED)
    RETURNING {COLUMNS}
""")  # noqa: S608
_RELEASE = text("""
    UPDATE cleave.bundle_proposal
       SET claimed_by = :claimant, claimed_until = clock_timestamp() + make_interval(secs => :delay_seconds),
           outcome = :outcome
     WHERE proposal_id = :proposal_id AND row_version = :seen
""")


def claim(
    tx: Connection,
    cluster: str,
    state: ProposalState,
    *,
    claimant: str,
    seconds: float,
    limit: int,
    kinds: Sequence[ProposalKind] = tuple(ProposalKind),
    after: int = 0,
) -> list[ProposalRow]:
    """Claim the first `limit` proposals of the cluster with an id above `after` that are in the state and have no running claim, for
    `seconds` from now. Return them by id, ascending. `claimant` is recorded.

    Each claim adds 1 to the proposal's attempts and raises its row version. Proposals that have waited too long (stale) are skipped, and so
    are proposals whose next attempt is scheduled later (`release`), proposals that another transaction has locked, and approved proposals
    of a namespace that is in dry run or not known.
    """
    values = {
        "cluster": cluster,
        "state": state.value,
        "kinds": [kind.value for kind in kinds],
        "claimant": claimant,
        "seconds": seconds,
        "limit": limit,
        "after": after,
    }
    claimed = [read_proposal(row._mapping) for row in tx.execute(_CLAIM, values)]
    return sorted(claimed, key=lambda row: row.proposal_id)


def release(tx: Connection, row: ProposalRow, *, claimant: str, delay_seconds: float, why: str) -> None:
    """Set the end of a claim to `delay_seconds` from now, so that the proposal can be claimed again afterwards. Store `why` as the
    proposal's outcome.

    The state does not change. Raises LostRace if the stored row has changed since `row` was read.
    """
    values = {
        "proposal_id": row.proposal_id,
        "claimant": claimant,
        "delay_seconds": delay_seconds,
        "outcome": why,
        "seen": row.row_version,
    }
    if tx.execute(_RELEASE, values).rowcount != 1:
        raise LostRace(
            f"another process has claimed proposal {row.proposal_id}; read the proposal again",
            what="bundle-proposal",
        )
