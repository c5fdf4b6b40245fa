"""Carries out what was approved, a limited number of acts each time, and records what came of each.

The approval is the intent. An act that a crash interrupted is claimed again when its claim has expired; it reads
first and finds itself done. Nothing is done in a namespace in dry run: its proposals are never approved, and
approved ones of a namespace that went back to dry run are not claimed. What is not done within an hour of its approval
is refused, since the load has changed, also if it was tried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from controller import telemetry
from controller.bundles.brokers.acts import ActOutcome, BundleActs
from controller.bundles.brokers.placement_rules import demand_allowed
from controller.bundles.store import claims as bundle_claims
from controller.bundles.store import cycles as bundle_cycles
from controller.bundles.store import namespaces as bundle_namespaces
from controller.bundles.store import proposals as bundle_proposals
from controller.bundles.store.namespaces import BalancingMode
from controller.bundles.store.proposals import ProposalKind, ProposalRow, ProposalState
from controller.domain.errors import CleaveError, InvalidInput, LostRace, NotFound, Retryable
from controller.store.postgres.engine import Store

log = telemetry.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ApplySettings:
    """Limits of one call: acts of each kind, and how often an act that fails for now is tried.

    `claim_seconds` must be longer than one act with its reads takes.
    """

    max_splits: int = 10
    max_unloads: int = 16
    max_attempts: int = 5
    claim_seconds: float = 180.0

    def __post_init__(self) -> None:
        if min(self.max_splits, self.max_unloads) < 0 or self.max_attempts < 1 or self.claim_seconds <= 0:
            raise InvalidInput(f"{self}: give limits >= 0, at least one attempt, and a claim longer than 0 s")

    def limit(self, kind: ProposalKind) -> int:
        """The most acts of the kind. Merges, which cannot be done, are only refused, up to 100."""
        return {ProposalKind.SPLIT: self.max_splits, ProposalKind.UNLOAD: self.max_unloads}.get(kind, 100)


@dataclass(frozen=True, slots=True)
class ActReport:
    """What came of one act: the proposal's state now, and a sentence."""

    proposal_id: int
    kind: ProposalKind
    bundle: str
    state: ProposalState
    outcome: str


def apply(
    store: Store,
    acts: BundleActs,
    *,
    cluster: str,
    cycle_id: int | None,
    settings: ApplySettings,
    claimant: str,
) -> list[ActReport]:
    """Approve what `cycle_id` proposed in automatic namespaces (None: nothing new), then do what is approved.

    Splits come first. An act that fails never stops the others. Raises StoreUnavailable.
    """
    with store.transaction() as tx:
        bundle_proposals.expire_approved(tx, cluster)
    done = []
    for kind in (ProposalKind.SPLIT, ProposalKind.UNLOAD, ProposalKind.MERGE):
        limit = settings.limit(kind)
        with store.transaction() as tx:
            if cycle_id is not None:
                bundle_proposals.approve_automatic(tx, cycle_id, kind, limit=limit, actor=claimant)
            claimed = bundle_claims.claim(
                tx,
                cluster,
                ProposalState.APPROVED,
                claimant=claimant,
                seconds=settings.claim_seconds,
                limit=limit,
                kinds=[kind],
            )
        done += [_one(store, acts, row, settings, claimant) for row in claimed]
    return done


def waiting(store: Store, *, cluster: str, cycle_id: int | None) -> list[ProposalRow]:
    """What `apply` would carry out: approved acts, and a cycle's own proposals in automatic namespaces."""
    with store.transaction() as tx:
        approved = bundle_proposals.list_proposals(tx, cluster, states=[ProposalState.APPROVED])
        own = []
        if cycle_id is not None:
            own = bundle_proposals.list_proposals(
                tx, cluster, cycle_id=cycle_id, states=[ProposalState.PROPOSED]
            )
        modes = {row.namespace: row.mode for row in bundle_namespaces.list_namespaces(tx, cluster)}
    automatic = [row for row in own if modes.get(row.namespace) is BalancingMode.AUTOMATIC]
    found = [row for row in (*approved, *automatic) if row.kind is not ProposalKind.MERGE]
    return [row for row in found if not row.is_stale]


def require_cycle(store: Store, *, cluster: str, cycle_id: int) -> None:
    """Raises NotFound for a cycle that this cluster never had."""
    with store.transaction() as tx:
        found = bundle_cycles.get_cycle(tx, cycle_id)
    if found.cluster != cluster:
        raise NotFound(
            f"cycle {cycle_id} is of cluster {found.cluster}, not of {cluster}; name one of its own"
        )


def _one(
    store: Store, acts: BundleActs, row: ProposalRow, settings: ApplySettings, claimant: str
) -> ActReport:
    try:
        state, outcome = _ACTS[row.kind](store, acts, row)
    except Retryable as error:
        if row.attempts < settings.max_attempts:
            return _put_back(store, row, error, claimant)
        state, outcome = ProposalState.FAILED, f"given up after {row.attempts} attempts: {error.message}"
    except CleaveError as error:
        state, outcome = ProposalState.FAILED, error.message
    log.info(
        "bundle act", proposal_id=row.proposal_id, bundle=str(row.bundle), state=state.value, outcome=outcome
    )
    with store.transaction() as tx:
        bundle_proposals.move(
            tx, row.proposal_id, state, actor=claimant, outcome=outcome, seen_row_version=row.row_version
        )
    return ActReport(row.proposal_id, row.kind, str(row.bundle), state, outcome)


def _put_back(store: Store, row: ProposalRow, error: Retryable, claimant: str) -> ActReport:
    with store.transaction() as tx:
        bundle_claims.release(
            tx, row, claimant=claimant, delay_seconds=error.delay_seconds, why=error.message
        )
    return ActReport(row.proposal_id, row.kind, str(row.bundle), ProposalState.APPROVED, error.message)


def _split(store: Store, acts: BundleActs, row: ProposalRow) -> tuple[ProposalState, str]:
    result = acts.split_at(row.bundle, row.cut_points)
    if result.outcome is ActOutcome.NOTHING_CHANGED:
        return ProposalState.FAILED, "the broker answered with success and changed nothing"
    _store_boundaries(store, row, result.bundles.boundaries)
    parts = ", ".join(child.range_text for child in result.children)
    return ProposalState.APPLIED, f"{result.outcome.value}: {parts}"


def _store_boundaries(store: Store, row: ProposalRow, boundaries: tuple[int, ...]) -> None:
    """So that the next cycle sees the parts before a report has them. If another writer was faster, its list stays."""
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
        log.info("boundaries were written by somebody else", namespace=row.namespace)


def _unload(_store: Store, acts: BundleActs, row: ProposalRow) -> tuple[ProposalState, str]:
    if row.destination is not None:  # the cluster's policies may have changed since it was proposed
        demand_allowed(acts.reader, row.namespace, row.destination)
    result = acts.unload(row.bundle, destination=row.destination, source=row.broker)
    if result.outcome is ActOutcome.NOTHING_CHANGED:
        return ProposalState.FAILED, f"unloaded, and {result.owner} has it again"
    return (
        ProposalState.APPLIED,
        f"{result.outcome.value}: owner {result.owner or 'none until it is looked up'}",
    )


def _merge(_store: Store, _acts: BundleActs, _row: ProposalRow) -> tuple[ProposalState, str]:
    return (
        ProposalState.REFUSED,
        "Pulsar's admin API cannot merge bundles; create the namespace anew with fewer",
    )


_ACTS: Mapping[ProposalKind, Callable[[Store, BundleActs, ProposalRow], tuple[ProposalState, str]]] = {
    ProposalKind.SPLIT: _split,
    ProposalKind.UNLOAD: _unload,
    ProposalKind.MERGE: _merge,
}
