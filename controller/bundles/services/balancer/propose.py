"""Performs one cycle: reads the inputs, decides, and records. Does not change any broker.

A repeated request gets the cycle of the first request. Splits and moves become proposals. Refusals are recorded with their reasons. If
another cycle ended in the meantime (LostRace), this cycle starts again, with at most four attempts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import tenacity

from controller import telemetry
from controller.bundles.broker_reports import ReportArea
from controller.bundles.brokers.reader import BundleReader, ask_rules
from controller.bundles.domain.balancing.moves import Move
from controller.bundles.domain.balancing.settings import BalanceSettings, validate
from controller.bundles.domain.cycle import CODE_VERSION, CycleOutcome, CycleState, run_cycle
from controller.bundles.domain.cycle_text import cycle_to_json, outcome_to_json, state_to_json
from controller.bundles.domain.merging import look_for_merges
from controller.bundles.domain.ring import NamespaceBundle
from controller.bundles.domain.splitting.triggers import ChosenSplit
from controller.bundles.services.balancer.gather import Snapshot, gather
from controller.bundles.store import cycles as bundle_cycles
from controller.bundles.store import namespaces as bundle_namespaces
from controller.bundles.store.namespaces import BalancingMode
from controller.bundles.store.proposals import NewProposal, ProposalKind
from controller.clock import to_datetime
from controller.domain.errors import LostRace
from controller.store.postgres.engine import Store

log = telemetry.get_logger(__name__)

_TRIES = 4


@dataclass(frozen=True, slots=True)
class ProposedCycle:
    """A recorded cycle: the numbers of splits and moves that it proposes, and of refusals (`held`).

    If `is_repeat` is True, an earlier request made the cycle, and the counts are 0.
    """

    cycle_id: int
    splits: int
    moves: int
    held: int
    is_repeat: bool = False


def propose(
    store: Store,
    reader: BundleReader,
    area: ReportArea,
    *,
    settings: BalanceSettings,
    request_key: str,
    decided_by: str,
) -> ProposedCycle:
    """Decide one cycle of the reader's cluster and record it with its proposals. If the cluster has a cycle of
    `request_key`, return that cycle, with `is_repeat` True and counts of 0, and do nothing.

    Reads the placement rules from the cluster and the reports from `area`; changes no broker. Raises InvalidPolicy,
    InvalidInput if the stored state cannot be read, StoreUnavailable, LostRace after four attempts that other cycles
    interrupted, Conflict if another call with `request_key` records its cycle at the same time or another cluster has a
    cycle of `request_key`, OSError or pyarrow's ArrowException if the storage of the reports does not answer or a file
    cannot be read, Retryable while no broker answers, and Terminal if a broker refuses to answer.
    """
    validate(settings)
    attempts = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(LostRace),
        stop=tenacity.stop_after_attempt(_TRIES),
        reraise=True,
    )
    return attempts(_once, store, reader, area, settings, request_key, decided_by)


def _once(
    store: Store,
    reader: BundleReader,
    area: ReportArea,
    settings: BalanceSettings,
    request_key: str,
    decided_by: str,
) -> ProposedCycle:
    """Attempt one cycle as `propose` describes. If the cluster has a cycle of `request_key`, return that cycle with
    `is_repeat` True, and record nothing. Raises LostRace, and records nothing, if another cycle of the cluster ended
    in the meantime. Also raises the other errors of `propose`.
    """
    cluster = reader.cluster
    with store.transaction() as tx:
        first = bundle_cycles.find_request(tx, cluster, request_key)
        namespaces = [row.namespace for row in bundle_namespaces.list_namespaces(tx, cluster)]
    if first is not None:
        return ProposedCycle(first, 0, 0, 0, is_repeat=True)
    snapshot = gather(store, cluster, settings, (area, ask_rules(reader, namespaces)))
    outcome = run_cycle(snapshot.inputs)
    refusals = [
        *_refusals(outcome, settings),
        *(
            {"rule": "split-policy", "reason": reason, "namespace": namespace}
            for namespace, reason in snapshot.unreadable.items()
        ),
    ]
    next_state = state_to_json(_next_state(snapshot, outcome))
    inputs_text, outcome_text = cycle_to_json(snapshot.inputs), outcome_to_json(outcome)
    with store.transaction() as tx:
        cycle_id = bundle_cycles.record(
            tx,
            cluster,
            request_key=request_key,
            decided_at=to_datetime(snapshot.inputs.balance.now_ms),
            decided_by=decided_by,
            code_version=CODE_VERSION,
            inputs=inputs_text,
            outcome=outcome_text,
            refusals=refusals,
            proposals=[*map(_split_proposal, outcome.splits), *map(_move_proposal, outcome.balance.moves)],
            next_state=next_state,
            seen_state_version=snapshot.state_version,
        )
    made = ProposedCycle(cycle_id, len(outcome.splits), len(outcome.balance.moves), len(refusals))
    log.info(
        "bundle cycle",
        cluster=cluster,
        cycle_id=cycle_id,
        splits=made.splits,
        moves=made.moves,
        held=made.held,
    )
    return made


def _next_state(snapshot: Snapshot, outcome: CycleOutcome) -> CycleState:
    """Return the state for the next cycle, with none of the moves counted as made. A bundle whose split is only shown, because its
    namespace is in dry run, keeps its hit count and begins no cool-down, so that the next cycle shows the split again.

    Cold cycles are counted only if reports were aggregated since the previous cycle.
    """
    hits, stamps = dict(outcome.hit_counts), dict(outcome.last_split_at_ms)
    for split in outcome.splits:
        if snapshot.modes.get(split.bundle.namespace) is BalancingMode.DRY_RUN:
            stamps.pop(split.bundle, None)
            hits[split.bundle] = snapshot.inputs.hit_counts.get(split.bundle, 0)
    cold = snapshot.state.cold_cycles
    if snapshot.is_new:
        looks = look_for_merges(snapshot.inputs, cold).values()
        cold = {bundle: count for look in looks for bundle, count in look.cold_cycles.items()}
    return replace(
        snapshot.state,
        balance=outcome.balance.state,
        hit_counts=hits,
        last_split_at_ms=stamps,
        cold_cycles=cold,
    )


def _split_proposal(split: ChosenSplit) -> NewProposal:
    """Return the split as a proposal. The reason is the reading that caused the split; `detail` has the algorithm, the load of each part,
    and the refusals of cuts that were not made (`left_undone`).
    """
    because, plan = split.because, split.plan
    parts = [
        {
            "bundle": part.bundle.range_text,
            "topic_count": part.topic_count,
            "msg_rate": part.msg_rate,
            "byte_rate": part.byte_rate,
        }
        for part in plan.parts
    ]
    return NewProposal(
        bundle=split.bundle,
        kind=ProposalKind.SPLIT,
        reason=f"{because.metric} {because.value:g} is above {because.limit:g}",
        cut_points=plan.cuts,
        detail={
            "algorithm": plan.algorithm,
            "parts": parts,
            "left_undone": [refusal.sentence for refusal in plan.left_undone],
        },
    )


def _move_proposal(move: Move) -> NewProposal:
    return NewProposal(
        bundle=NamespaceBundle.parse(move.bundle_id),
        kind=ProposalKind.UNLOAD,
        reason=f"{move.reason.value}: {_why(move)}the bundle carries {move.metric} {move.load:.4g}",
        broker=move.source,
        destination=move.destination,
        detail={
            "metric": move.metric,
            "load": move.load,
            "reason": move.reason.value,
            "because": move.because and asdict(move.because),
        },
    )


def _why(move: Move) -> str:
    return "" if move.because is None else f"{move.because.sentence}; "


def _refusals(outcome: CycleOutcome, settings: BalanceSettings) -> Iterator[Mapping[str, Any]]:
    """Yield the refusals of a cycle as rows of inspect.bundles_why_not: refused moves, refused splits, and bundles
    whose move was dropped for a split or a live proposal. Each row has `rule` (the name of the shedder, or `split`)
    and `reason`. A column that is absent from a row is null in the view; `namespace` and `bundle` are None if the
    refusal concerns a broker or the whole cluster.
    """
    for refusal in outcome.balance.refusals:
        namespace, _, bundle = (refusal.bundle_id or "").rpartition("/")
        yield {
            "rule": settings.shedder,
            "reason": refusal.reason.value,
            "broker": refusal.broker,
            "namespace": namespace or None,
            "bundle": bundle or None,
            "metric": refusal.metric,
            "value": refusal.value,
            "needed": refusal.needed,
        }
    for split in outcome.split_refusals:
        yield {
            "rule": "split",
            "reason": split.cut_refusal.sentence if split.cut_refusal else split.reason.value,
            "namespace": split.bundle.namespace,
            "bundle": split.bundle.range_text,
            "metric": split.metric,
            "value": split.value,
            "needed": split.needed,
        }
    for bundle_id in outcome.passed_over:
        namespace, _, bundle = bundle_id.rpartition("/")
        yield {
            "rule": settings.shedder,
            "reason": "gives way, with its exchange, to a split or to a live proposal",
            "namespace": namespace,
            "bundle": bundle,
        }
