"""Applies approved proposals, a limited number per call, records their outcomes, and verifies applied proposals by reading brokers.

The approval is the intent. A proposal that a crash interrupted is claimed again after its claim has expired; the action reads the
cluster first and finds its own result. Approved proposals whose turn had not come have no claim, and the next call applies them. Nothing is
applied in a namespace in dry run: its proposals are never approved, and approved proposals are not claimed after the namespace went back to
dry run. A proposal that was not applied within an hour of its approval is refused, even if it was attempted, because the load has changed.

A split is verified by the boundaries of its namespace, an unload by the owner of its bundle.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from controller import telemetry
from controller.bundles.brokers.checked_changes import ActOutcome, BundleActions
from controller.bundles.brokers.reader import BundleReader, demand_allowed
from controller.bundles.store import cycles as bundle_cycles
from controller.bundles.store import namespaces as bundle_namespaces
from controller.bundles.store import proposals as bundle_proposals
from controller.bundles.store.namespaces import BalancingMode
from controller.bundles.store.proposals import ProposalKind, ProposalRow, ProposalState
from controller.domain.errors import CleaveError, InvalidInput, LostRace, NotFound, Retryable
from controller.store.postgres.clock import database_now
from controller.store.postgres.engine import Store

log = telemetry.get_logger(__name__)

OWNER_WAIT_SECONDS = 300.0
"""Seconds for which a bundle without an owner after its unload may wait for the lookup of a client."""
_VERIFY_CLAIM_SECONDS, _VERIFY_AGAIN_SECONDS, _VERIFY_AT_ONCE = 120.0, 20.0, 100


@dataclass(frozen=True, slots=True)
class ApplySettings:
    """Limits of one call: the proposals of each kind, and the attempts of a proposal that fails temporarily. Calls for
    the same cycle share the limits of proposals.

    `claim_seconds` should exceed the duration of one action; `_apply_kind` says what happens during a longer action. Raises InvalidInput for
    negative limits, no attempt, or a claim of 0 s.
    """

    max_splits: int = 10
    max_unloads: int = 16
    max_attempts: int = 5
    claim_seconds: float = 180.0

    def __post_init__(self) -> None:
        if min(self.max_splits, self.max_unloads) < 0 or self.max_attempts < 1 or self.claim_seconds <= 0:
            raise InvalidInput(f"{self}: give limits >= 0, at least one attempt, and a claim longer than 0 s")

    def limit(self, kind: ProposalKind) -> int:
        """Return the maximum number of proposals of the kind. Merges, which cannot be applied, are refused, up to 100."""
        return {ProposalKind.SPLIT: self.max_splits, ProposalKind.UNLOAD: self.max_unloads}.get(kind, 100)


@dataclass(frozen=True, slots=True)
class ActReport:
    """Outcome of one proposal: its present state, and a text."""

    proposal_id: int
    kind: ProposalKind
    bundle: str
    state: ProposalState
    outcome: str


def apply(
    store: Store,
    acts: BundleActions,
    *,
    cluster: str,
    cycle_id: int | None,
    settings: ApplySettings,
    claimant: str,
) -> list[ActReport]:
    """Refuse proposals that were approved more than an hour ago and have no running claim. Then, for splits and
    afterwards for unloads, approve proposals of `cycle_id` in automatic namespaces (None: approve none), claim approved
    proposals and apply them, each up to the limit of `settings`. Proposals of `cycle_id` that earlier calls approved or
    began count, because a caller repeats a call that was interrupted.

    Approved proposals of namespaces in dry run are left. A merge cannot be applied: it is claimed and refused. Each outcome is recorded in a
    transaction of its own. After a temporary error the proposal stays approved for a later call, until `max_attempts`. A proposal that fails
    does not stop the others. Return a report for each claimed proposal. A cycle of another cluster counts as None (see `require_cycle`).
    Raises StoreUnavailable, and LostRace if another process has changed a claimed proposal; the remaining proposals then wait for a later
    call.
    """
    with store.transaction() as tx:
        bundle_proposals.expire_approved(tx, cluster)
    reports = []
    for kind in (ProposalKind.SPLIT, ProposalKind.UNLOAD, ProposalKind.MERGE):
        limit = settings.limit(kind)
        if cycle_id is not None:
            with store.transaction() as tx:
                bundle_proposals.approve_automatic(tx, cluster, cycle_id, kind, limit=limit, actor=claimant)
                limit -= bundle_proposals.count_begun(tx, cluster, cycle_id, kind)
        reports += _apply_kind(store, acts, cluster, kind, limit, settings, claimant)
    return reports


def _apply_kind(
    store: Store,
    acts: BundleActions,
    cluster: str,
    kind: ProposalKind,
    limit: int,
    settings: ApplySettings,
    claimant: str,
) -> list[ActReport]:
    """Claim and perform approved proposals of the kind, one after the other by id, up to `limit` proposals. Return a
    report for each.

    Each proposal is claimed when its turn comes, so a claim covers one action. If the action takes longer than `claim_seconds`, because
    brokers are silent, another process may claim the proposal and perform the action too. That process reads the cluster first, and sends no
    request if the result is there. If both processes read the cluster before either request takes effect, brokers get two requests: the
    bundle is unloaded twice, and without a destination its owner may change twice; a second split of the bundle is refused, because the
    bundle no longer exists. The process whose claim has expired raises LostRace when it records its outcome. Raises the errors of `apply`.
    """
    reports: list[ActReport] = []
    last_id = 0
    while len(reports) < limit:
        with store.transaction() as tx:
            claimed = bundle_proposals.claim(
                tx,
                cluster,
                ProposalState.APPROVED,
                claimant=claimant,
                seconds=settings.claim_seconds,
                limit=1,
                kinds=[kind],
                after=last_id,
            )
        if not claimed:
            break
        [row] = claimed
        last_id = row.proposal_id
        reports.append(_apply_claimed(store, acts, row, settings, claimant))
    return reports


def waiting(store: Store, *, cluster: str, cycle_id: int | None) -> list[ProposalRow]:
    """Return the proposals that `apply` would consider: the approved proposals of the cluster, newest cycle first,
    then the proposals of `cycle_id` in automatic namespaces (None: none of these). Merges and stale proposals are
    left out. Changes nothing.

    `apply` may apply fewer proposals, because it obeys the limits of `ApplySettings`. It skips proposals that are
    claimed or wait for another attempt, approved proposals of a namespace in dry run, and proposals of the cycle for
    a bundle that has an approved or applied proposal.
    """
    with store.transaction() as tx:
        approved = bundle_proposals.list_proposals(tx, cluster, states=[ProposalState.APPROVED])
        own = []
        if cycle_id is not None:
            own = bundle_proposals.list_proposals(
                tx, cluster, cycle_id=cycle_id, states=[ProposalState.PROPOSED]
            )
        modes = {row.namespace: row.mode for row in bundle_namespaces.list_namespaces(tx, cluster)}
    automatic = [row for row in own if modes.get(row.namespace) is BalancingMode.AUTOMATIC]
    rows = [row for row in (*approved, *automatic) if row.kind is not ProposalKind.MERGE]
    return [row for row in rows if not row.is_stale]


def require_cycle(store: Store, *, cluster: str, cycle_id: int) -> None:
    """Raise NotFound unless the cycle is recorded for the cluster; a deleted cycle is no longer recorded."""
    with store.transaction() as tx:
        cycle = bundle_cycles.get_cycle(tx, cycle_id)
    if cycle.cluster != cluster:
        raise NotFound(
            f"cycle {cycle_id} belongs to cluster {cycle.cluster}, not to {cluster}; name a cycle of {cluster}"
        )


def _apply_claimed(
    store: Store, acts: BundleActions, row: ProposalRow, settings: ApplySettings, claimant: str
) -> ActReport:
    """Perform the claimed proposal, record its new state, and return the report. After a temporary error (Retryable) the proposal stays
    approved, and its claim ends after the delay of the error, so that a later call repeats the proposal; at attempt number `max_attempts`
    the proposal becomes failed. Any other error of Cleave makes the proposal failed at once. A merge becomes refused.

    No error of the action is raised. Raises LostRace if another process has changed the proposal, and
    StoreUnavailable.
    """
    delay_seconds = 0.0
    try:
        state, outcome = _ACTS[row.kind](store, acts, row)
    except Retryable as error:
        state, outcome, delay_seconds = ProposalState.APPROVED, error.message, error.delay_seconds
        if row.attempts >= settings.max_attempts:
            state, outcome = ProposalState.FAILED, f"given up after {row.attempts} attempts: {error.message}"
    except CleaveError as error:
        state, outcome = ProposalState.FAILED, error.message
    log.info(
        "bundle act", proposal_id=row.proposal_id, bundle=str(row.bundle), state=state.value, outcome=outcome
    )
    return _record(store, row, state, outcome, claimant, delay_seconds)


def _record(
    store: Store,
    row: ProposalRow,
    state: ProposalState,
    outcome: str,
    claimant: str,
    delay_seconds: float,
) -> ActReport:
    """Record the state and the outcome of a claimed proposal, and return the report. If the state is the present one, the claim ends after
    `delay_seconds`, so that a later call continues. Raises LostRace if another process has changed the proposal.
    """
    with store.transaction() as tx:
        if state is row.state:
            bundle_proposals.release(tx, row, claimant=claimant, delay_seconds=delay_seconds, why=outcome)
        else:
            bundle_proposals.move(
                tx, row.proposal_id, state, actor=claimant, outcome=outcome, seen_row_version=row.row_version
            )
    return ActReport(row.proposal_id, row.kind, str(row.bundle), state, outcome)


def _split(store: Store, acts: BundleActions, row: ProposalRow) -> tuple[ProposalState, str]:
    """Split the bundle at the cut points. Return the state for the proposal and its outcome as a text: APPLIED
    if all cuts exist, also if they existed already; FAILED if the broker answered a request with success and
    changed nothing. Cuts made before that stay. The new boundaries are stored only for APPLIED; an error of
    storing them is logged. Raises the errors of `split_at`.
    """
    result = acts.split_at(row.bundle, row.cut_points)
    if result.outcome is ActOutcome.NOTHING_CHANGED:
        return ProposalState.FAILED, "the broker answered with success and changed nothing"
    _store_boundaries(store, row, result.bundles.boundaries)
    parts = ", ".join(child.range_text for child in result.children)
    return ProposalState.APPLIED, f"{result.outcome.value}: {parts}"


def _store_boundaries(store: Store, row: ProposalRow, boundaries: tuple[int, ...]) -> None:
    """Store the boundaries in a transaction of their own, so that the next cycle knows the parts before a report names them.

    Equal boundaries are not written. If another process writes at the same time, its list is kept. Any other error of Cleave is logged
    only: the broker has split the bundle, and its next report brings the boundaries.
    """
    try:
        with store.transaction() as tx:
            stored = bundle_namespaces.get_namespace(tx, row.cluster, row.namespace)
            if stored.boundaries != boundaries:
                bundle_namespaces.set_boundaries(
                    tx,
                    row.cluster,
                    row.namespace,
                    boundaries,
                    actor="balancer",
                    seen_row_version=stored.row_version,
                )
    except LostRace:
        log.info("boundaries already written", namespace=row.namespace)
    except CleaveError as error:
        log.warning("boundaries of a split not stored", namespace=row.namespace, error=error.message)


def _unload(_store: Store, acts: BundleActions, row: ProposalRow) -> tuple[ProposalState, str]:
    """Unload the bundle, to the destination if the proposal has a destination. Return the state for the proposal and
    its outcome as a text. APPLIED: the bundle has left its owner, whichever broker owns the bundle now, or the
    destination or no broker owned the bundle before. FAILED: the previous owner still owns the bundle, or owns it
    again. If neither the source nor the destination owned the bundle but another broker did, the first attempt is
    FAILED, and a later attempt APPLIED.

    Raises InvalidInput if the placement rules forbid the destination, and the other errors of `demand_allowed` and
    `BundleActions.unload`.
    """
    if row.destination is not None:  # the policies of the cluster may have changed since the proposal
        demand_allowed(acts.reader, row.namespace, row.destination)
    try:
        result = acts.unload(row.bundle, destination=row.destination, source=row.broker)
    except LostRace as error:
        if row.attempts > 1:
            # An attempt whose outcome was not recorded may have moved the bundle. The verification judges the owner.
            why = f"an earlier attempt may have unloaded it: {row.broker} no longer owns it"
            return ProposalState.APPLIED, why
        # The bundle has moved since the proposal, so another attempt would find the same.
        return ProposalState.FAILED, error.message
    if result.outcome is ActOutcome.NOTHING_CHANGED:
        return ProposalState.FAILED, f"unloaded, and {result.owner} has it again"
    return (
        ProposalState.APPLIED,
        f"{result.outcome.value}: owner {result.owner or 'none until it is looked up'}",
    )


def _merge(_store: Store, _acts: BundleActions, _row: ProposalRow) -> tuple[ProposalState, str]:
    """Return the state REFUSED and the reason as a text, because Pulsar cannot merge bundles. Does nothing."""
    return (
        ProposalState.REFUSED,
        "Pulsar's admin API cannot merge bundles; create the namespace again with fewer bundles",
    )


_ACTS: Mapping[ProposalKind, Callable[[Store, BundleActions, ProposalRow], tuple[ProposalState, str]]] = {
    ProposalKind.SPLIT: _split,
    ProposalKind.UNLOAD: _unload,
    ProposalKind.MERGE: _merge,
}


def verify(store: Store, reader: BundleReader, *, claimant: str) -> list[ActReport]:
    """Claim up to 100 applied proposals of the cluster, read the brokers, and record each proposal as verified or failed. Return a report
    for each.

    A split is verified if every cut is a boundary. An unload is verified if the destination owns its bundle, or if no broker does after
    OWNER_WAIT_SECONDS; without a destination, as soon as the source does not own the bundle. An unload that waits for an owner, or a
    proposal whose broker does not answer, stays applied and is read again after 20 s. In all other cases, including other errors of
    reading, the proposal fails. Raises StoreUnavailable, and LostRace if another process has changed a claimed proposal.
    """
    with store.transaction() as tx:
        claimed = bundle_proposals.claim(
            tx,
            reader.cluster,
            ProposalState.APPLIED,
            claimant=claimant,
            seconds=_VERIFY_CLAIM_SECONDS,
            limit=_VERIFY_AT_ONCE,
        )
        now = database_now(tx)
    return [_verify_claimed(store, reader, row, claimant, now) for row in claimed]


def _verify_claimed(
    store: Store, reader: BundleReader, row: ProposalRow, claimant: str, now: datetime
) -> ActReport:
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
    report = _record(store, row, state, outcome, claimant, _VERIFY_AGAIN_SECONDS)
    log.info("bundle proposal checked", proposal_id=row.proposal_id, state=state.value, outcome=outcome)
    return report


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
