"""Proposals of the balancer: one row per proposed split, unload or merge, from proposed to verified, failed or refused.

The database refuses backward changes of the state, approvals in a namespace in dry run, and two live proposals for one bundle. This module
does not call brokers.

A proposal is claimed before it is applied or verified: one holder at a time, for a limited time. A change of the proposal's state (`move`)
ends the claim, and `release` changes the time of its end. After a claim has expired, any process may claim the proposal.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, text

from controller.bundles.domain.ring import NamespaceBundle
from controller.domain.approval_states import ApprovalState, Subject
from controller.domain.errors import LostRace, NotFound
from controller.store import approvals
from controller.store.approvals import NewApproval
from controller.store.postgres.clock import database_now

STALE_AFTER_SECONDS = 3600.0
"""Seconds for which a proposal may wait for its approval, and then for its application. After that it is stale."""


class ProposalKind(StrEnum):
    """Kind of a proposal."""

    SPLIT = "split"
    UNLOAD = "unload"
    MERGE = "merge"


class ProposalState(StrEnum):
    """The state of a proposal."""

    PROPOSED = "proposed"
    APPROVED = "approved"
    """Approved by a person, or by the mode automatic. A process must claim the proposal to apply it."""
    APPLIED = "applied"
    """The action was performed, or had been performed already."""
    VERIFIED = "verified"
    """A later read has confirmed the result."""
    FAILED = "failed"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewProposal:
    """A proposal to record. `cut_points` belong to a split or merge, `broker` and `destination` to an unload."""

    bundle: NamespaceBundle
    kind: ProposalKind
    reason: str
    broker: str | None = None
    destination: str | None = None
    cut_points: tuple[int, ...] = ()
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProposalRow:
    """A stored proposal. `broker` is the source of an unload; `destination` None: the brokers choose. `actor`: the process or person that
    set the state. `outcome`: the text of the last attempt or of the end, None before. `attempts`: number of claims. `applied_at`: None
    before the proposal was applied. `changed_at`: time of the last change of the row, claims included.
    """

    proposal_id: int
    cycle_id: int
    cluster: str
    namespace: str
    lower_bound: int
    upper_bound: int
    kind: ProposalKind
    broker: str | None
    destination: str | None
    cut_points: tuple[int, ...]
    reason: str
    detail: Mapping[str, Any]
    state: ProposalState
    actor: str
    outcome: str | None
    attempts: int
    row_version: int
    proposed_at: datetime
    applied_at: datetime | None
    changed_at: datetime
    is_stale: bool
    """True if the proposal was stale (see STALE) when the row was read."""

    @property
    def bundle(self) -> NamespaceBundle:
        """Bundle of the proposal."""
        return NamespaceBundle(self.namespace, self.lower_bound, self.upper_bound)

    @property
    def action(self) -> str:
        """Short text of the action: `unload acme/shop/0x00000000_0x40000000 from a:8080 to b:8080`, or `split
        acme/shop/0x00000000_0x40000000 at 0x20000000`. Parts without a value are left out; several cut points are separated by commas.
        """
        cuts = ", ".join(f"{cut:#010x}" for cut in self.cut_points)
        parts = (("at", cuts), ("from", self.broker), ("to", self.destination))
        return " ".join([self.kind, str(self.bundle), *(f"{word} {value}" for word, value in parts if value)])


STALE = f"""coalesce(
           CASE state WHEN 'proposed' THEN proposed_at WHEN 'approved' THEN approved_at END
               < clock_timestamp() - make_interval(secs => {STALE_AFTER_SECONDS})
           AND (claimed_until IS NULL OR claimed_until < clock_timestamp()), false)"""
"""SQL condition on a row of bundle_proposal: the proposal has waited too long, so its load figures are outdated.

A proposal that is being applied, or whose next attempt is scheduled, is not stale.
"""
COLUMNS = (
    "proposal_id, cycle_id, cluster, namespace, lower_bound, upper_bound, kind, broker, destination,"
    " cut_points, reason, detail, state, actor, outcome, attempts, row_version,"
    f" proposed_at, applied_at, changed_at, {STALE} AS is_stale"
)
_GET = text(f"SELECT {COLUMNS} FROM cleave.bundle_proposal WHERE proposal_id = :proposal_id")  # noqa: S608  # ours
_LOCK = text(f"{_GET.text} FOR UPDATE")
_LIST = text(f"""
    SELECT {COLUMNS} FROM cleave.bundle_proposal
     WHERE cluster = :cluster AND (CAST(:cycle_id AS bigint) IS NULL OR cycle_id = :cycle_id)
       AND state = ANY (:states)
     ORDER BY cycle_id DESC, ordinal
""")  # noqa: S608
_PROPOSED = text("""
    SELECT proposal_id FROM cleave.bundle_proposal
     WHERE cluster = :cluster AND namespace = :namespace AND state = 'proposed'
""")
_ADD = text("""
    INSERT INTO cleave.bundle_proposal
           (cycle_id, ordinal, cluster, namespace, lower_bound, upper_bound, kind, broker, destination, cut_points,
            reason, detail, actor)
    SELECT :cycle_id, ordinal, :cluster, namespace, lower_bound, upper_bound, kind, broker, destination,
           CAST(cut_points AS bigint[]), reason, detail, :actor
      FROM unnest(CAST(:namespace AS text[]), CAST(:lower_bound AS bigint[]), CAST(:upper_bound AS bigint[]),
                  CAST(:kind AS text[]), CAST(:broker AS text[]), CAST(:destination AS text[]),
                  CAST(:cut_points AS text[]), CAST(:reason AS text[]), CAST(:detail AS jsonb[])) WITH ORDINALITY
           AS proposed (namespace, lower_bound, upper_bound, kind, broker, destination, cut_points, reason, detail,
                        ordinal)
""")
_SUPERSEDE = text(f"""
    UPDATE cleave.bundle_proposal p
       SET state = 'refused',
           outcome = format('cycle %s decided again before the proposal was approved', CAST(:cycle_id AS bigint))
     WHERE p.cluster = :cluster AND p.state = 'proposed' AND p.cycle_id <> :cycle_id
       AND ({STALE}
            OR (p.cluster, p.namespace) NOT IN (
                SELECT n.cluster, n.namespace FROM cleave.namespace_bundles n WHERE n.mode = 'approval')
            OR (p.cluster, p.namespace, p.lower_bound) IN (
                SELECT q.cluster, q.namespace, q.lower_bound FROM cleave.bundle_proposal q
                 WHERE q.cycle_id = :cycle_id))
    RETURNING proposal_id
""")  # noqa: S608
_BUSY = text(f"""
    SELECT {COLUMNS} FROM cleave.bundle_proposal p
     WHERE p.cluster = :cluster AND NOT {STALE} AND (p.state IN ('approved', 'applied') OR (
           p.state = 'proposed' AND (p.cluster, p.namespace) IN (
               SELECT n.cluster, n.namespace FROM cleave.namespace_bundles n WHERE n.mode = 'approval')))
     ORDER BY p.proposal_id
""")  # noqa: S608
_APPLIED = text(f"""
    SELECT {COLUMNS} FROM cleave.bundle_proposal
     WHERE cluster = :cluster AND kind = :kind AND state IN ('applied', 'verified')
       AND applied_at >= clock_timestamp() - make_interval(secs => :seconds)
     ORDER BY applied_at, proposal_id
""")  # noqa: S608
_EXPIRE = text(f"""
    UPDATE cleave.bundle_proposal
       SET state = 'refused', claimed_by = NULL, claimed_until = NULL,
           outcome = 'not done within {STALE_AFTER_SECONDS / 60:g} minutes of its approval: the load has changed since'
                     || CASE WHEN attempts > 0 THEN format('; attempts: %s; the last: %s', attempts,
                                                           coalesce(outcome, 'the result is not known'))
                             ELSE '' END
     WHERE cluster = :cluster AND state = 'approved' AND {STALE}
    RETURNING proposal_id
""")  # noqa: S608
_MOVE = text(f"""
    UPDATE cleave.bundle_proposal
       SET state = :state, actor = :actor, outcome = :outcome, claimed_by = NULL, claimed_until = NULL
     WHERE proposal_id = :proposal_id AND row_version = :seen RETURNING {COLUMNS}
""")  # noqa: S608
_APPROVE_AUTOMATIC = text(f"""
    UPDATE cleave.bundle_proposal p SET state = 'approved', actor = :actor
      FROM (SELECT q.proposal_id
              FROM cleave.bundle_proposal q JOIN cleave.namespace_bundles n USING (cluster, namespace)
             WHERE q.cluster = :cluster AND q.cycle_id = :cycle_id AND q.state = 'proposed' AND n.mode = 'automatic'
               AND q.kind = :kind
               AND NOT {STALE}
               AND NOT EXISTS (SELECT FROM cleave.bundle_proposal o
                                WHERE o.cluster = q.cluster AND o.namespace = q.namespace
                                  AND o.lower_bound = q.lower_bound AND o.state IN ('approved', 'applied'))
             ORDER BY q.ordinal
             LIMIT greatest(0, :limit - (SELECT count(*) FROM cleave.bundle_proposal d
                                          WHERE d.cluster = :cluster AND d.cycle_id = :cycle_id AND d.kind = :kind
                                            AND d.approved_at IS NOT NULL))) chosen
     WHERE p.proposal_id = chosen.proposal_id AND p.state = 'proposed' RETURNING p.proposal_id
""")  # noqa: S608
_COUNT_BEGUN = text("""
    SELECT count(*) FROM cleave.bundle_proposal
     WHERE cluster = :cluster AND cycle_id = :cycle_id AND kind = :kind AND attempts > 0
       AND NOT (state = 'approved' AND (claimed_until IS NULL OR claimed_until < clock_timestamp()))
""")


def add(tx: Connection, cycle_id: int, cluster: str, proposals: Sequence[NewProposal], *, actor: str) -> None:
    """Write the proposals of a recorded cycle in their order, in one statement, in the state proposed. Without
    proposals, write nothing. `actor` is the process or person that proposes. Raises InvalidInput for cut points that
    are not inside the bundle, are given for an unload, or are missing for a split or a merge; and Conflict if the
    cycle has proposals already.
    """
    if not proposals:
        return
    columns = {
        "namespace": [p.bundle.namespace for p in proposals],
        "lower_bound": [p.bundle.lower for p in proposals],
        "upper_bound": [p.bundle.upper for p in proposals],
        "kind": [p.kind.value for p in proposals],
        "broker": [p.broker for p in proposals],
        "destination": [p.destination for p in proposals],
        "cut_points": ["{" + ",".join(map(str, p.cut_points)) + "}" for p in proposals],
        "reason": [p.reason for p in proposals],
        "detail": [json.dumps(dict(p.detail), sort_keys=True) for p in proposals],
    }
    tx.execute(_ADD, {"cycle_id": cycle_id, "cluster": cluster, "actor": actor, **columns})


def supersede(tx: Connection, cluster: str, cycle_id: int) -> None:
    """Refuse proposals of the cluster that are in the state proposed and of another cycle than `cycle_id`, and end their approvals.

    In a namespace with mode approval, a proposal is refused only if it is stale (proposed longer than STALE_AFTER_SECONDS ago) or if cycle
    `cycle_id` has a proposal, of any kind, for a bundle with the same lower bound.
    """
    ids = tx.execute(_SUPERSEDE, {"cluster": cluster, "cycle_id": cycle_id}).scalars().all()
    approvals.end(tx, Subject.BUNDLE_PROPOSAL, ids, ApprovalState.EXPIRED, f"cycle {cycle_id} decided again")


def expire_approved(tx: Connection, cluster: str) -> int:
    """Refuse proposals in the state approved that were approved longer than STALE_AFTER_SECONDS ago and have no running claim; end their
    approvals. Return the number of refused proposals.
    """
    ids = tx.execute(_EXPIRE, {"cluster": cluster}).scalars().all()
    approvals.end(
        tx,
        Subject.BUNDLE_PROPOSAL,
        ids,
        ApprovalState.EXPIRED,
        "not done in time: the load has changed since",
    )
    return len(ids)


def ask(tx: Connection, cluster: str) -> None:
    """Request an approval for each proposal of the cluster that waits for an approval, unless the proposal has a
    pending approval. A proposal waits for an approval if it is in the state proposed, is not stale, and its namespace
    has mode approval. The approval expires when the proposal becomes stale.
    """
    now = database_now(tx)
    waiting = [row for row in under_way(tx, cluster) if row.state is ProposalState.PROPOSED]
    approvals.propose(
        tx,
        [
            NewApproval(
                Subject.BUNDLE_PROPOSAL,
                row.proposal_id,
                None,
                row.action,
                row.reason,
                row.actor,
                STALE_AFTER_SECONDS - (now - row.proposed_at).total_seconds(),
            )
            for row in waiting
        ],
    )


def stop_asking(tx: Connection, cluster: str, namespace: str, why: str) -> None:
    """End the pending approvals of all proposals of a namespace. The proposals are kept."""
    ids = tx.execute(_PROPOSED, {"cluster": cluster, "namespace": namespace}).scalars().all()
    approvals.end(tx, Subject.BUNDLE_PROPOSAL, ids, ApprovalState.EXPIRED, why)


def under_way(tx: Connection, cluster: str) -> list[ProposalRow]:
    """Return the cluster's proposals, oldest first, that are approved, or applied and not yet verified, or that wait for an approval.
    Stale proposals are left out.
    """
    return [read_proposal(row._mapping) for row in tx.execute(_BUSY, {"cluster": cluster})]


def applied_within(tx: Connection, cluster: str, kind: ProposalKind, seconds: float) -> list[ProposalRow]:
    """Return proposals of a kind that were applied in the last `seconds`, by time: those that are applied or verified now, not failed
    ones.
    """
    values = {"cluster": cluster, "kind": kind.value, "seconds": seconds}
    return [read_proposal(row._mapping) for row in tx.execute(_APPLIED, values)]


def get_proposal(tx: Connection, proposal_id: int, *, lock: bool = False) -> ProposalRow:
    """Return a proposal, in any state. With `lock`, lock the proposal's row first, until the transaction ends; the
    call waits for a lock of another transaction. Raises NotFound if there is no proposal with this id.
    """
    row = tx.execute(_LOCK if lock else _GET, {"proposal_id": proposal_id}).one_or_none()
    if row is None:
        raise NotFound(f"there is no proposal {proposal_id}; inspect.bundles_proposals lists the proposals")
    return read_proposal(row._mapping)


def list_proposals(
    tx: Connection,
    cluster: str,
    *,
    cycle_id: int | None = None,
    states: Sequence[ProposalState] = tuple(ProposalState),
) -> list[ProposalRow]:
    """Return all proposals of a cluster in these states, those of the newest cycle first, in the order of their cycle. `cycle_id` None:
    of all cycles.
    """
    values = {"cluster": cluster, "cycle_id": cycle_id, "states": [s.value for s in states]}
    return [read_proposal(row._mapping) for row in tx.execute(_LIST, values)]


def approve_automatic(
    tx: Connection, cluster: str, cycle_id: int, kind: ProposalKind, *, limit: int, actor: str
) -> int:
    """Approve the first proposals of a cycle of the cluster and of a kind that are in the state proposed, in namespaces
    with mode automatic, until `limit` proposals of the cycle and the kind have been approved. Return the number of
    proposals approved by this call; 0 for a cycle of another cluster. `actor` is recorded as the approver.

    Proposals that an earlier call or a person approved count, whatever their present state, so that calls for one cycle
    share the limit. Stale proposals, proposals for a bundle with a live (approved or applied) proposal, and proposals
    that a concurrent transaction approves or refuses are skipped. An approval that was requested before the mode became
    automatic ends.
    """
    values = {"cluster": cluster, "cycle_id": cycle_id, "kind": kind.value, "limit": limit, "actor": actor}
    ids = tx.execute(_APPROVE_AUTOMATIC, values).scalars().all()
    approvals.end(tx, Subject.BUNDLE_PROPOSAL, ids, ApprovalState.EXPIRED, "the namespace has mode automatic")
    return len(ids)


def count_begun(tx: Connection, cluster: str, cycle_id: int, kind: ProposalKind) -> int:
    """Return the number of proposals of a cycle of the cluster and of a kind that have been attempted, whatever the
    outcome. Approved proposals without a running claim do not count: they can be attempted again.
    """
    values = {"cluster": cluster, "cycle_id": cycle_id, "kind": kind.value}
    return int(tx.execute(_COUNT_BEGUN, values).scalar_one())


def move(
    tx: Connection,
    proposal_id: int,
    state: ProposalState,
    *,
    actor: str,
    outcome: str | None,
    seen_row_version: int,
) -> ProposalRow:
    """Set the state, the actor and the outcome (None removes the stored outcome) if the row still has the version seen. Return the new row.

    The change ends the claim. A proposal that becomes applied, failed or refused also ends its approval, unless the approval has ended.

    Raises NotFound, or LostRace for another row version, before all other errors; InvalidInput for a state that may not follow the present
    state (the present state itself may be set), for a failed or refused proposal without an outcome, and for an approval in a namespace
    that is in dry run or not known; and Conflict for an approval while another proposal for a bundle with the same lower bound is approved
    or applied.
    """
    values = {"state": state.value, "actor": actor, "outcome": outcome}
    key = {"proposal_id": proposal_id, "seen": seen_row_version}
    row = tx.execute(_MOVE, values | key).one_or_none()
    if row is None:
        present = get_proposal(tx, proposal_id)
        raise LostRace(
            f"proposal {proposal_id} is {present.state} at version {present.row_version}, not {seen_row_version}; "
            "read the proposal again and decide again",
            what="bundle-proposal",
        )
    if state in _ENDS_OF_APPROVALS:
        approvals.end(tx, Subject.BUNDLE_PROPOSAL, [proposal_id], _ENDS_OF_APPROVALS[state], outcome)
    return read_proposal(row._mapping)


_ENDS_OF_APPROVALS = {
    ProposalState.APPLIED: ApprovalState.DONE,
    ProposalState.FAILED: ApprovalState.EXPIRED,
    ProposalState.REFUSED: ApprovalState.EXPIRED,
}
"""The state of an approval, unless it has ended, once its proposal is in a state."""


def read_proposal(row: Mapping[Any, Any]) -> ProposalRow:
    """Return the proposal of a row with COLUMNS."""
    return ProposalRow(
        **{
            **row,
            "kind": ProposalKind(row["kind"]),
            "state": ProposalState(row["state"]),
            "cut_points": tuple(row["cut_points"]),
        }
    )


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
