"""Verifies applied proposals by reading brokers: the boundaries for a split, the owner for an unload."""

from __future__ import annotations

from datetime import datetime

from controller import telemetry
from controller.bundles.brokers.reader import BundleReader
from controller.bundles.services.balancer.apply import ActReport
from controller.bundles.store import claims as bundle_claims
from controller.bundles.store import proposals as bundle_proposals
from controller.bundles.store.proposals import ProposalKind, ProposalRow, ProposalState
from controller.domain.errors import CleaveError, Retryable
from controller.store.postgres.clock import database_now
from controller.store.postgres.engine import Store

log = telemetry.get_logger(__name__)

OWNER_WAIT_SECONDS = 300.0
"""Seconds for which a bundle without an owner after its unload may wait for the lookup of a client."""
_CLAIM_SECONDS, _AGAIN_SECONDS, _AT_ONCE = 120.0, 20.0, 100


def verify(store: Store, reader: BundleReader, *, claimant: str) -> list[ActReport]:
    """Claim up to 100 applied proposals of the cluster, read the brokers, and record each proposal as verified or failed. Return a report
    for each.

    A split is verified if every cut is a boundary. An unload is verified if the destination owns its bundle, or if no broker does after
    OWNER_WAIT_SECONDS; without a destination, as soon as the source does not own the bundle. An unload that waits for an owner, or a
    proposal whose broker does not answer, stays applied and is read again after 20 s. In all other cases, including other errors of
    reading, the proposal fails. Raises StoreUnavailable, and LostRace if another process has changed a claimed proposal.
    """
    with store.transaction() as tx:
        claimed = bundle_claims.claim(
            tx,
            reader.cluster,
            ProposalState.APPLIED,
            claimant=claimant,
            seconds=_CLAIM_SECONDS,
            limit=_AT_ONCE,
        )
        now = database_now(tx)
    return [_one(store, reader, row, claimant, now) for row in claimed]


def _one(store: Store, reader: BundleReader, row: ProposalRow, claimant: str, now: datetime) -> ActReport:
    """Verify the proposal, which was claimed at `now`, and return the report. If an unload cannot be judged yet or a broker does not
    answer, the proposal stays applied, and its claim ends after 20 s so that it is read again. Otherwise record the new state, which is
    failed after any other error of reading. Raises LostRace if another process has changed the proposal.
    """
    try:
        state, outcome = _look(reader, row, now)
    except Retryable as error:
        state, outcome = ProposalState.APPLIED, error.message
    except CleaveError as error:
        state, outcome = ProposalState.FAILED, error.message
    with store.transaction() as tx:
        if state is ProposalState.APPLIED:
            bundle_claims.release(tx, row, claimant=claimant, delay_seconds=_AGAIN_SECONDS, why=outcome)
        else:
            bundle_proposals.move(
                tx, row.proposal_id, state, actor=claimant, outcome=outcome, seen_row_version=row.row_version
            )
    log.info("bundle proposal checked", proposal_id=row.proposal_id, state=state.value, outcome=outcome)
    return ActReport(row.proposal_id, row.kind, str(row.bundle), state, outcome)


def _look(reader: BundleReader, row: ProposalRow, now: datetime) -> tuple[ProposalState, str]:
    """Return the state that the cluster shows for the proposal, and the outcome as a text: VERIFIED or FAILED, or APPLIED for an unload
    that cannot be judged yet. Raises Retryable if a broker does not answer, NotFound if the namespace of a split is unknown, and Terminal
    if a broker refuses to answer.
    """
    if row.kind is ProposalKind.SPLIT:
        bundles = reader.bundles(row.namespace)
        missing = [cut for cut in row.cut_points if cut not in bundles.boundaries]
        if missing:
            return ProposalState.FAILED, f"{len(missing)} of {len(row.cut_points)} cuts are no boundaries"
        return ProposalState.VERIFIED, f"every cut is a boundary; {row.namespace} has {bundles.count} bundles"
    return _look_at_owner(reader, row, now)


def _look_at_owner(reader: BundleReader, row: ProposalRow, now: datetime) -> tuple[ProposalState, str]:
    """Return the state of an unload, judged by the present owner of its bundle, and the outcome as a text. Nothing is
    written.

    If a broker owns the bundle, the state is FAILED if this broker is the source, or is not the destination of an
    unload with a destination; otherwise VERIFIED. If no broker owns the bundle, the source has released the bundle,
    so the unload has succeeded, and a broker takes the bundle only when a client looks it up. The state is then
    VERIFIED; but with a destination, it is APPLIED for the first OWNER_WAIT_SECONDS after the unload, so that a later
    call can check which broker took the bundle.

    `now` is the database's time, as are the times of the proposal. Raises the errors of `BundleReader.owner`.
    """
    first = [name for name in (row.destination, row.broker) if name]
    owner = reader.owner(row.bundle, first=first)
    if owner is None:
        age = now - (row.applied_at or row.changed_at)
        if row.destination is not None and age.total_seconds() < OWNER_WAIT_SECONDS:
            return ProposalState.APPLIED, "no client has looked it up since"
        return ProposalState.VERIFIED, "released; no client has looked it up since"
    if owner == row.broker:
        return ProposalState.FAILED, f"{owner} has it again"
    if row.destination is not None and owner != row.destination:
        return ProposalState.FAILED, f"{owner} has it, not {row.destination}"
    return ProposalState.VERIFIED, f"owned by {owner}"
